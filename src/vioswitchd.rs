//! vioswitchd: the switch.

use std::process::ExitCode;

fn main() -> ExitCode {
    daemon::program::main()
}
