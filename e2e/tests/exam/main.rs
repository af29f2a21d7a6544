//! The exam: every promise of the fleet, kept by real binaries over real sockets. One test is one promise.
#![expect(clippy::disallowed_methods, reason = "a black-box test has its own tasks and measures real time")]

mod adopt;
mod agents;
mod behind_the_back;
mod conflicts;
mod cut_wire;
mod disk_full;
mod exec;
mod exec_keys;
mod files;
mod flows;
mod gateway_crash;
mod ghost;
mod held_create;
mod held_matrix;
mod instruments;
mod lifecycle;
mod lists;
mod node_crash;
mod one_name;
mod placement;
mod ports;
mod readmit;
mod refusals;
mod removal;
mod scale;
mod secrets;
mod silence;
mod single_writer;
mod sleep;
mod smuggling;
mod stalled;
mod stopped;
mod streams;
mod watches;
mod wedged;
