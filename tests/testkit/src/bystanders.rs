//! Bystanders that talk in a thread of their own, beside a test that does something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::neighbours::Pair;
use super::vm::Vm;

/// Two that talk in a thread of their own, and lose nothing, until they are told to end.
pub struct Bystanders {
    over: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Bystanders {
    /// The first of them sends.
    pub fn begin(vms: [Vm; 2]) -> Bystanders {
        let over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let over = Arc::clone(&over);
            move || {
                let mut pair = Pair::one_way(vms);
                pair.calibrate();
                let mut frames = 0;
                loop {
                    frames += pair.talk(Duration::from_millis(20)).frames;
                    if over.load(Ordering::Acquire) {
                        break;
                    }
                }
                pair.check();
                frames
            }
        });
        Bystanders { over, thread }
    }

    /// They end, having lost nothing.
    pub fn finish(self) {
        self.end().expect("the bystanders lost nothing");
    }

    /// They end; an error tells that they lost something.
    pub fn end(self) -> Result<(), String> {
        self.over.store(true, Ordering::Release);
        let frames = self.thread.join().map_err(|_| "the bystanders lost frames".to_owned())?;
        assert!(frames > 0);
        println!("the bystanders lost none of {frames} frames");
        Ok(())
    }
}
