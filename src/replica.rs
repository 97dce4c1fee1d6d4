//! One replica: the task tree of `quorate run`.
