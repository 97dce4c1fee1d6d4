// Keeps the page up to date: each event replaces the sections that have changed. What is in them was escaped by the server.
"use strict";

(() => {
  // The server sends something every 10 seconds. Twice that, and a little, is silence.
  const SILENCE = 25;
  const notice = document.getElementById("connection");
  let heard = performance.now();

  const say = (text) => {
    if (notice.textContent !== text) {
      notice.textContent = text;
    }
    notice.hidden = text === "";
  };

  const hear = () => {
    heard = performance.now();
    say("");
  };

  const stops = (section) => [...section.querySelectorAll("a")];

  // A reader with a keyboard stays at the link where the focus was.
  const replace = (id, html) => {
    const section = document.getElementById(id);
    if (section === null) {
      return;
    }
    const focus = stops(section).indexOf(document.activeElement);
    section.innerHTML = html;
    if (focus >= 0) {
      const next = stops(section)[focus];
      if (next !== undefined) {
        next.focus({ preventScroll: true });
      }
    }
  };

  const follow = () => {
    const events = new EventSource("page/events");
    events.addEventListener("state", (event) => {
      hear();
      for (const [id, html] of JSON.parse(event.data)) {
        replace(id, html);
      }
    });
    events.addEventListener("alive", hear);
    events.addEventListener("error", () => {
      // A refused connection is not tried again by itself.
      if (events.readyState === EventSource.CLOSED) {
        setTimeout(follow, 5000);
      }
    });
  };

  setInterval(() => {
    const silent = Math.round((performance.now() - heard) / 1000);
    if (silent > SILENCE) {
      say(`No word from this replica for ${silent} s: what is shown is at least as old.`);
    }
  }, 1000);

  follow();
})();
