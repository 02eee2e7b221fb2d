//! The operations of one terminal.

use rand_xoshiro::rand_core::Rng;

use super::{KeyChooser, RecordLayout, YcsbSpec, YcsbTransaction};
use crate::streams::Stream;
use crate::workload::{Transaction, TransactionStream};

/// An endless stream of YCSB transactions, reproducible from its random stream.
pub struct YcsbTerminal {
    random: Stream,
    chooser: KeyChooser,
    layout: RecordLayout,
    read_below: u64,
    verify_below: u64,
    value: Vec<u8>,
}

impl YcsbTerminal {
    pub fn new(spec: &YcsbSpec, layout: RecordLayout, chooser: KeyChooser, random: Stream) -> YcsbTerminal {
        YcsbTerminal {
            random,
            chooser,
            layout,
            read_below: threshold(spec.read_share),
            verify_below: threshold(spec.verify_share),
            value: vec![0; layout.field_bytes],
        }
    }
}

impl TransactionStream for YcsbTerminal {
    fn next(&mut self) -> Transaction<'_> {
        let choice = self.random.next_u64();
        let key = self.chooser.key(&mut self.random);
        // The halves of one draw decide independently of each other.
        if choice >> 32 < self.read_below {
            let verify = choice & 0xffff_ffff < self.verify_below;
            return Transaction::Ycsb(YcsbTransaction::Read { key, verify });
        }
        let field = (((choice & 0xffff_ffff) * self.layout.fields as u64) >> 32) as u16;
        self.layout.fill_field(key, field, &mut self.random, &mut self.value);
        Transaction::Ycsb(YcsbTransaction::Update { key, field, value: &self.value })
    }
}

/// The number below which a uniform 32-bit draw falls with probability `share`.
fn threshold(share: f64) -> u64 {
    (share * (1_u64 << 32) as f64).round() as u64
}

#[cfg(test)]
mod tests {
    use super::super::{KeyOrder, Ycsb};
    use super::*;

    fn spec(read_share: f64) -> YcsbSpec {
        YcsbSpec {
            records: 1000,
            fields: 10,
            field_bytes: 100,
            mix: "test".to_owned(),
            read_share,
            skew: 1.0,
            key_order: KeyOrder::Clustered,
            update_fields: 1,
            verify_share: 0.25,
        }
    }

    /// The first operations of a terminal, written out.
    fn operations(seed: u64, terminal: u32) -> Vec<String> {
        let mut stream = Ycsb::new(&spec(0.5), seed).terminal(terminal);
        (0..1000).map(|_| format!("{:?}", stream.next())).collect()
    }

    #[test]
    fn operations_are_a_function_of_seed_and_terminal() {
        assert_eq!(operations(42, 3), operations(42, 3));
        assert_ne!(operations(42, 3), operations(42, 4));
        assert_ne!(operations(42, 3), operations(43, 3));
    }

    #[test]
    fn shares_and_fields_come_out_as_asked() {
        let mut stream = Ycsb::new(&spec(0.9), 1).terminal(0);
        let (mut reads, mut verified, mut fields) = (0, 0, [0; 10]);
        for _ in 0..100_000 {
            match stream.next() {
                Transaction::Ycsb(YcsbTransaction::Read { verify, .. }) => {
                    reads += 1;
                    verified += u32::from(verify);
                }
                Transaction::Ycsb(YcsbTransaction::Update { field, .. }) => fields[field as usize] += 1,
                Transaction::Tpcc(_) => unreachable!(),
            }
        }
        assert!((89_500..90_500).contains(&reads), "{reads} reads");
        assert!((22_000..23_000).contains(&verified), "{verified} verified");
        assert!(fields.iter().all(|&count| (850..1150).contains(&count)), "{fields:?}");
    }

    #[test]
    fn shares_of_nothing_and_of_everything_are_exact() {
        for (share, expected) in [(0.0, 0), (1.0, 10_000)] {
            let mut stream = Ycsb::new(&spec(share), 1).terminal(0);
            let is_read = |transaction: Transaction<'_>| transaction.type_index() == 0;
            let reads = (0..10_000).filter(|_| is_read(stream.next())).count();
            assert_eq!(reads, expected);
        }
    }

    #[test]
    fn updates_carry_values_that_verify() {
        let ycsb = Ycsb::new(&spec(0.0), 1);
        let mut stream = ycsb.terminal(0);
        for _ in 0..100 {
            let Transaction::Ycsb(YcsbTransaction::Update { key, field, value }) = stream.next() else {
                panic!("a read at read_share 0");
            };
            assert!(ycsb.layout.verify_field(key, field, value));
        }
    }
}
