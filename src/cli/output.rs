//! Tables and documents: `-o table|wide|json|yaml|name`.
