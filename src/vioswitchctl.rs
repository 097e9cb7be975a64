//! vioswitchctl: shows and changes a switch while it runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    ctl::main()
}
