//! Speaks to the agent inside a space.
