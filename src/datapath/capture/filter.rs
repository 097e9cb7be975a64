//! Classic BPF: runs the program that `tcpdump -ddd` makes of an expression over one frame.
//!
//! The language is that of bpf(4) of the BSDs and of the kernel's
//! `Documentation/networking/filter.rst`, without the kernel's extensions. A program is checked
//! once: jumps go forward and stay inside the program. So a program ends after at most as many
//! steps as it has instructions, at most [`CAPTURE_FILTER_INSTRUCTIONS`]. A load beyond the frame's
//! bytes rejects the frame, and so does a division by zero.

use base::limits::CAPTURE_FILTER_INSTRUCTIONS;

/// One instruction, as in `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// Class, size, mode or operation.
    pub code: u16,
    /// Instructions to skip if the condition holds.
    pub jt: u8,
    /// Instructions to skip if the condition does not hold.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

/// Why a program is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The program has no instruction, or too many.
    #[error("a filter has 1 to {CAPTURE_FILTER_INSTRUCTIONS} instructions")]
    Length,
    /// The instruction is unknown.
    #[error("instruction {0} of the filter is unknown")]
    Unknown(usize),
    /// The instruction jumps out of the program, or uses a memory word that does not exist, or
    /// divides by the constant zero.
    #[error("instruction {0} of the filter goes beyond its end or its memory")]
    Beyond(usize),
    /// The program does not end with a return.
    #[error("the filter does not end with a return")]
    NoReturn,
}

/// A checked program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter(Box<[Instruction]>);

/// Number of memory words that a program may use.
const WORDS: usize = 16;

// The lowest three bits are the class.
const LD: u16 = 0;
const LDX: u16 = 1;
const ST: u16 = 2;
const STX: u16 = 3;
const ALU: u16 = 4;
const JMP: u16 = 5;
const RET: u16 = 6;
const MISC: u16 = 7;
/// Operand flag: the index register instead of `k`.
const X: u16 = 8;
// Sizes and modes of loads.
const W: u16 = 0;
const H: u16 = 8;
const B: u16 = 0x10;
const IMM: u16 = 0;
const ABS: u16 = 0x20;
const IND: u16 = 0x40;
const MEM: u16 = 0x60;
const LEN: u16 = 0x80;
const MSH: u16 = 0xa0;

impl Filter {
    /// Checks a program.
    pub fn new(program: Vec<Instruction>) -> Result<Filter, FilterError> {
        if program.is_empty() || program.len() > CAPTURE_FILTER_INSTRUCTIONS {
            return Err(FilterError::Length);
        }
        for (at, instruction) in program.iter().enumerate() {
            check(*instruction, at, program.len())?;
        }
        match program.last() {
            Some(last) if last.code & 7 == RET => Ok(Filter(program.into())),
            _ => Err(FilterError::NoReturn),
        }
    }

    /// True if the program accepts a frame of `len` bytes that begins with `bytes`. Adds the number
    /// of instructions run to `count`.
    pub(crate) fn accepts(&self, bytes: &[u8], len: u32, count: &mut u64) -> bool {
        self.run(bytes, len, count).is_some_and(|kept| kept > 0)
    }

    /// Returns the program's result; `None` if the program reads beyond the frame or divides by
    /// zero.
    fn run(&self, bytes: &[u8], len: u32, count: &mut u64) -> Option<u32> {
        let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; WORDS]);
        let mut at = 0;
        loop {
            let Instruction { code, jt, jf, k } = *self.0.get(at)?;
            at += 1;
            *count += 1;
            let operand = if code & X != 0 { x } else { k };
            match code & 7 {
                LD => a = load(code, k, x, bytes, len, &memory)?,
                LDX if code == LDX | B | MSH => x = u32::from(*bytes.get(k as usize)? & 15) * 4,
                LDX => x = load(code, k, x, bytes, len, &memory)?,
                ST => *memory.get_mut(k as usize)? = a,
                STX => *memory.get_mut(k as usize)? = x,
                ALU => a = calculate(code & 0xf0, a, operand)?,
                JMP if code & 0xf0 == 0 => at += k as usize,
                JMP => {
                    let holds = match code & 0xf0 {
                        0x10 => a == operand,
                        0x20 => a > operand,
                        0x30 => a >= operand,
                        _ => a & operand != 0,
                    };
                    at += usize::from(if holds { jt } else { jf });
                }
                RET => return Some(if code & 0x18 == 0x10 { a } else { k }),
                _ if code & 0xf8 == 0x80 => a = x,
                _ => x = a,
            }
        }
    }
}

/// Fails if instruction number `at` of `count` is unknown or could lead out of the program.
fn check(
    Instruction { code, jt, jf, k }: Instruction,
    at: usize,
    count: usize,
) -> Result<(), FilterError> {
    let sized = matches!(code & !7, mode if matches!(mode & 0xe0, ABS | IND)
        && matches!(mode & 0x18, W | H | B));
    let plain = matches!(code & !7, IMM | MEM | LEN);
    let known = match code & 7 {
        LD => sized || plain,
        LDX => plain || code == LDX | B | MSH,
        ST | STX => code & !7 == 0,
        // Up to 0xa0, which is exclusive or; negation has no operand.
        ALU => code & 0xf0 <= 0xa0 && code & !0xff == 0 && code != ALU | X | 0x80,
        JMP => code & 0xf0 <= 0x40 && code & !0xff == 0 && code != JMP | X,
        RET => matches!(code & !7, 0 | 0x10),
        _ => code == MISC || code == MISC | 0x80,
    };
    if !known {
        return Err(FilterError::Unknown(at));
    }
    let words =
        matches!(code & 7, ST | STX) || (matches!(code & 7, LD | LDX) && code & 0xe0 == MEM);
    let jump = match code & 0xf0 {
        0 => k as usize,
        _ => usize::from(jt.max(jf)),
    };
    let leaves = code & 7 == JMP && jump >= count - at - 1;
    let zero = code == ALU | 0x30 || code == ALU | 0x90;
    let beyond = (words && k as usize >= WORDS) || leaves || (zero && k == 0);
    if beyond { Err(FilterError::Beyond(at)) } else { Ok(()) }
}

fn load(code: u16, k: u32, x: u32, bytes: &[u8], len: u32, memory: &[u32; WORDS]) -> Option<u32> {
    let from = match code & 0xe0 {
        IMM => return Some(k),
        MEM => return memory.get(k as usize).copied(),
        LEN => return Some(len),
        IND => k.checked_add(x)?,
        _ => k,
    };
    let bytes = bytes.get(from as usize..)?;
    Some(match code & 0x18 {
        W => u32::from_be_bytes(*bytes.first_chunk()?),
        H => u16::from_be_bytes(*bytes.first_chunk()?).into(),
        _ => (*bytes.first()?).into(),
    })
}

fn calculate(operation: u16, a: u32, operand: u32) -> Option<u32> {
    Some(match operation {
        0x00 => a.wrapping_add(operand),
        0x10 => a.wrapping_sub(operand),
        0x20 => a.wrapping_mul(operand),
        0x30 => a.checked_div(operand)?,
        0x40 => a | operand,
        0x50 => a & operand,
        0x60 => a.checked_shl(operand).unwrap_or(0),
        0x70 => a.checked_shr(operand).unwrap_or(0),
        0x80 => a.wrapping_neg(),
        0x90 => a.checked_rem(operand)?,
        _ => a ^ operand,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    fn filter(program: &[(u16, u8, u8, u32)]) -> Result<Filter, FilterError> {
        Filter::new(program.iter().map(|&(code, jt, jf, k)| one(code, jt, jf, k)).collect())
    }

    /// `tcpdump -ddd -y EN10MB udp port 53`, of libpcap 1.10.
    const DNS: &[(u16, u8, u8, u32)] = &[
        (40, 0, 0, 12),
        (21, 0, 6, 34525),
        (48, 0, 0, 20),
        (21, 0, 15, 17),
        (40, 0, 0, 54),
        (21, 12, 0, 53),
        (40, 0, 0, 56),
        (21, 10, 11, 53),
        (21, 0, 10, 2048),
        (48, 0, 0, 23),
        (21, 0, 8, 17),
        (40, 0, 0, 20),
        (69, 6, 0, 8191),
        (177, 0, 0, 14),
        (72, 0, 0, 14),
        (21, 2, 0, 53),
        (72, 0, 0, 16),
        (21, 0, 1, 53),
        (6, 0, 0, 262_144),
        (6, 0, 0, 0),
    ];

    fn udp(to: u16) -> Vec<u8> {
        let mut bytes = vec![0; 60];
        bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
        bytes[23] = 17;
        bytes[36..38].copy_from_slice(&to.to_be_bytes());
        bytes
    }

    #[test]
    fn a_program_of_tcpdump_chooses() {
        let dns = filter(DNS).unwrap();
        let accepts = |bytes: &[u8]| dns.accepts(bytes, bytes.len() as u32, &mut 0);
        assert!(accepts(&udp(53)) && !accepts(&udp(54)));
        assert!(!accepts(&udp(53)[..36]), "its port is not there");
        let mut options = udp(54);
        options[14] = 0x46;
        options[40..42].copy_from_slice(&53u16.to_be_bytes());
        assert!(accepts(&options), "behind one word of options");
        let mut count = 0;
        dns.accepts(&udp(53), 60, &mut count);
        assert_eq!(count, 13);
    }

    #[test]
    fn what_is_calculated() {
        let result = |operation, a, k| {
            let program = [(0, 0, 0, a), (ALU | operation, 0, 0, k), (0x16, 0, 0, 0)];
            filter(&program).unwrap().run(&[], 0, &mut 0)
        };
        assert_eq!(result(0x10, 1, 2), Some(u32::MAX));
        assert_eq!(result(0x30, 7, 2), Some(3));
        assert_eq!(result(0x60, 1, 32), Some(0));
        assert_eq!(result(0x90, 7, 4), Some(3));
        assert_eq!(result(0xa0, 6, 3), Some(5));
        // The register may be zero: the check refuses a constant zero only.
        let by_register = filter(&[(ALU | X | 0x30, 0, 0, 0), (6, 0, 0, 1)]).unwrap();
        assert_eq!(by_register.run(&[], 0, &mut 0), None);
        let words = [(0, 0, 0, 9), (2, 0, 0, 15), (0, 0, 0, 1), (0x60, 0, 0, 15), (0x16, 0, 0, 0)];
        assert_eq!(filter(&words).unwrap().run(&[], 0, &mut 0), Some(9));
        let len = filter(&[(0x80, 0, 0, 0), (7, 0, 0, 0), (0x87, 0, 0, 0), (0x16, 0, 0, 0)]);
        assert_eq!(len.unwrap().run(&[], 1514, &mut 0), Some(1514));
    }

    #[test]
    fn programs_that_could_go_astray_are_refused() {
        let ends = (6, 0, 0, 1);
        for (program, error) in [
            (&[][..], FilterError::Length),
            (&[(0, 0, 0, 0)], FilterError::NoReturn),
            (&[(5, 0, 0, 1), ends], FilterError::Beyond(0)),
            (&[(5, 0, 0, u32::MAX), ends], FilterError::Beyond(0)),
            (&[ends, (21, 0, 1, 0), ends], FilterError::Beyond(1)),
            (&[(2, 0, 0, 16), ends], FilterError::Beyond(0)),
            (&[(0x60, 0, 0, 16), ends], FilterError::Beyond(0)),
            (&[(ALU | 0x30, 0, 0, 0), ends], FilterError::Beyond(0)),
            (&[(0x18, 0, 0, 0), ends], FilterError::Unknown(0)),
            (&[(0x38, 0, 0, 0), ends], FilterError::Unknown(0)),
            (&[(0xb4, 0, 0, 0), ends], FilterError::Unknown(0)),
            (&[(0x55, 0, 0, 0), ends], FilterError::Unknown(0)),
            (&[(0x0e, 0, 0, 0), ends], FilterError::Unknown(0)),
            (&[(0xffff, 0, 0, 0), ends], FilterError::Unknown(0)),
        ] {
            assert_eq!(filter(program), Err(error), "{program:?}");
        }
        let long = vec![one(6, 0, 0, 1); CAPTURE_FILTER_INSTRUCTIONS + 1];
        assert_eq!(Filter::new(long), Err(FilterError::Length));
    }

    /// Every accepted program ends, and reads only bytes that exist.
    #[test]
    fn no_program_goes_astray() {
        use proptest::prelude::*;
        let instruction = (0u16..0xc0, 0u8..6, 0u8..6, prop_oneof![0u32..70, any::<u32>()]);
        let program = proptest::collection::vec(instruction, 0..12);
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let accepted = std::cell::Cell::new(0);
        runner
            .run(&program, |mut program| {
                program.push((6, 0, 0, 1));
                if let Ok(filter) = filter(&program) {
                    accepted.set(accepted.get() + 1);
                    let mut count = 0;
                    filter.accepts(&[0x45; 60], 60, &mut count);
                    filter.accepts(&[], 0, &mut count);
                    prop_assert!(count <= 2 * filter.0.len() as u64);
                }
                Ok(())
            })
            .unwrap();
        assert!(accepted.get() > 10, "{accepted:?}");
    }
}
