//! What an administrator meets in the first hour: signals that would kill, a log that says nothing,
//! a configuration that is judged before it is put into service, words about front-ends that do
//! not get what they came for; and the sums of `scripts/demo`.

mod check;
mod degraded;
mod demo;
mod front_ends;
mod log;
mod process;
mod signals;
