//! Work for guests that notices when a byte changes: memory that rests, memory that is rewritten,
//! and a TCP stream in each direction, all checked by the guests themselves while it goes on.
//!
//! What is wrong goes to `/tmp/bad` in the guest that sees it. Everything stays in the guest, so
//! that it goes on wherever QEMU runs the guest next.

use std::time::Duration;

use super::vm::Vm;
use super::wait_for;

/// For what an emulated guest does beside all its other work.
const LIMIT: Duration = Duration::from_secs(60);

/// Where a stream's receiver listens.
const PORT: u16 = 5001;

/// A stream is one random file of 1 MiB, sent again and again. Frames and pages begin elsewhere in
/// it each time, so a page from another moment holds other bytes.
const SEND: &str = "n=0; while [ ! -e /tmp/stop ]; do cat /tmp/data || exit; \
    n=$((n + 1)); echo $n >/tmp/sent; done";

/// Checks each copy of the file; its sum is the argument. The other sum is that of nothing, the
/// stream's end. The pauses make the receiver the slower one: at each moment its kernel holds what
/// the switch has written and nobody has read. A receiver that keeps up would have read every page
/// before QEMU stops it, and would not notice if none of them came with it.
const RECEIVE: &str = "n=0; while :; do \
    sum=$(for i in 1 2 3 4; do dd bs=64k count=4 iflag=fullblock; sleep 0.02; done 2>/dev/null | \
    md5sum); case $sum in \
    $1*) n=$((n + 1)); echo $n >/tmp/good ;; \
    d41d8cd98f00b204e9800998ecf8427e*) break ;; \
    *) echo stream, after $n: $sum >>/tmp/bad ;; \
    esac; done; echo $n >/tmp/got";

/// Four files of 512 KiB in turn: each is checked, then written anew. That is 5 MB of pages each
/// second at most, which a migration can follow.
const REWRITE: &str = "i=0; while :; do f=/pattern/$((i % 4)); \
    [ $i -lt 4 ] || md5sum <$f | cmp -s - $f.sum || echo memory, lap $i: $f >>/tmp/bad; \
    dd if=/dev/urandom of=$f bs=64k count=8 2>/dev/null; md5sum <$f >$f.sum; \
    i=$((i + 1)); echo $i >/tmp/laps; sleep 0.1; done";

/// A guest's memory at work. The guest must not reboot.
pub struct Memory {
    boot: String,
    sum: String,
}

impl Memory {
    /// Fills 48 MiB and begins to rewrite 2 MiB more.
    pub fn start(vm: &mut Vm) -> Memory {
        vm.ok_within(
            "mkdir /pattern && mount -t tmpfs -o size=64m tmpfs /pattern && \
             dd if=/dev/urandom of=/pattern/still bs=1M count=48",
            LIMIT,
        );
        vm.ok(&format!("echo '{REWRITE}' >/tmp/rewrite; sh /tmp/rewrite >/dev/null 2>&1 &"));
        Memory { boot: boot(vm), sum: still(vm) }
    }

    /// It holds what it held, it is still being rewritten, and it is the same boot.
    pub fn check(&self, vm: &mut Vm) {
        assert_eq!(boot(vm), self.boot, "the guest has rebooted");
        assert_eq!(still(vm), self.sum, "memory changed that nobody wrote");
        let laps = number(vm, "laps");
        // Until each file that was there before has been looked at.
        let done = |vm: &mut Vm| (number(vm, "laps") > laps + 4).then_some(());
        wait_for("memory to be rewritten", LIMIT, || done(vm));
        nothing_bad(vm);
    }
}

fn boot(vm: &mut Vm) -> String {
    vm.ok("cat /proc/sys/kernel/random/boot_id")
}

fn still(vm: &mut Vm) -> String {
    vm.ok_within("md5sum </pattern/still", LIMIT)
}

/// A number that one of the guest's processes keeps in a file; 0 before its first.
fn number(vm: &mut Vm, file: &str) -> u64 {
    // The file may just have been emptied for the next number.
    let said = vm.ok(&format!(
        "until n=$(cat /tmp/{file} 2>/dev/null || echo 0) && [ \"$n\" ]; do :; done; echo $n"
    ));
    said.trim().parse().expect("a number")
}

fn nothing_bad(vm: &mut Vm) {
    let said = vm.ok("cat /tmp/bad 2>/dev/null; true");
    assert_eq!(said, "", "{} found changed bytes", vm.spec.name);
}

/// Begins a stream from one guest to the other.
pub fn begin_stream(from: &mut Vm, to: &mut Vm) {
    let sum = from.ok("dd if=/dev/urandom of=/tmp/data bs=64k count=16 2>/dev/null && \
         md5sum </tmp/data | cut -c-32");
    let sum = sum.trim();
    // Both programs have the socket as their input and output: busybox's nc itself copies by the
    // kilobyte.
    to.ok(&format!(
        "echo '{RECEIVE}' >/tmp/receive; nc -l -p {PORT} -e sh /tmp/receive {sum} \
         >/dev/null 2>&1 &"
    ));
    to.ok(&format!("until netstat -ltn | grep -q :{PORT}; do sleep 0.1; done"));
    let address = to.spec.ip4();
    from.ok(&format!(
        "echo '{SEND}' >/tmp/send; nc {address} {PORT} -e sh /tmp/send >/dev/null 2>&1 &"
    ));
}

/// What was under way to this guest arrives, and more after it; none of it is changed.
pub fn stream_goes_on(to: &mut Vm) {
    let before = number(to, "good");
    wait_for("the stream to go on", LIMIT, || {
        nothing_bad(to);
        (number(to, "good") >= before + 4).then_some(())
    });
    let (status, _) = to.run("[ -e /tmp/got ]", LIMIT);
    assert_ne!(status, 0, "the stream to {} has ended", to.spec.name);
}

/// Ends a stream: all that was sent has been received. Returns its MiB.
pub fn end_stream(from: &mut Vm, to: &mut Vm) -> u64 {
    from.ok("touch /tmp/stop");
    to.ok_within("until [ -e /tmp/got ]; do sleep 0.1; done", LIMIT);
    nothing_bad(to);
    let (sent, got) = (number(from, "sent"), number(to, "got"));
    assert!(sent == got && sent > 0, "{sent} copies of the file sent, {got} received");
    sent
}
