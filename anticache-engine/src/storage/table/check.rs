//! Whether a table's parts agree with each other.

use super::{EVICTED_BIT, Found, Table};
use crate::anticache::evicted_table::EvictedId;
use crate::storage::hash_index::Handle;
use crate::storage::index::{Index, reference};
use crate::storage::tuples::{NO_TUPLE, flag};

impl Table {
    /// Whether the invariants at the top of this module hold; for tests and `--check`. Walks everything.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check(&self) -> Result<(), String> {
        let (live, evicted) = (self.tuples.live(), self.evicted.live());
        for (index, def) in self.indexes.iter().zip(&self.def.indexes) {
            if index.len() != live + evicted {
                return Err(format!(
                    "index {}: {} entries for {live} resident and {evicted} evicted tuples",
                    def.name,
                    index.len()
                ));
            }
            if let Index::Ordered(tree) = index {
                tree.check().map_err(|problem| format!("index {}: {problem}", def.name))?;
            }
        }
        let resident = self.tuples.ids().filter(|&id| self.tuples.is_live(id));
        let count = resident.map(|id| self.check_entries(id, Found::Resident(id))).sum::<Result<u64, String>>()?;
        let entries = (0..self.evicted.len() as EvictedId).filter(|&id| self.evicted.is_live(id));
        let evicted_count =
            entries.map(|id| self.check_entries(id | EVICTED_BIT, Found::Evicted(id))).sum::<Result<u64, String>>()?;
        if (count, evicted_count) != (live, evicted) {
            return Err(format!("{count} and {evicted_count} tuples found of {live} resident and {evicted} evicted"));
        }
        self.check_chain()
    }

    /// That every index leads to a tuple; 1.
    fn check_entries(&self, handle: Handle, found: Found) -> Result<u64, String> {
        let places = self.places();
        for (index, def) in self.indexes.iter().zip(&self.def.indexes) {
            let mut leads = false;
            let key = places.columns(handle).hash_key(def);
            index.find_all(def, &key, |handle| places.columns(handle), |entry| leads |= entry == handle);
            if !leads {
                return Err(format!("index {} does not lead to tuple {found:?}", def.name));
            }
        }
        if let (Found::Resident(id), Some(values)) = (found, &self.values) {
            for (var, &offset) in self.def.var_offsets.iter().enumerate() {
                let cell = reference(self.tuples.row(id), offset);
                if cell != 0 && values.owner(cell) != (id, var as u8) {
                    return Err(format!("a value of tuple {id} belongs to {:?}", values.owner(cell)));
                }
            }
        }
        Ok(1)
    }

    fn check_chain(&self) -> Result<(), String> {
        let live = self.tuples.live();
        let Some(chain) = &self.chain else {
            return Ok(());
        };
        let times: Vec<u64> = chain.marks().map(|(_, before)| before).collect();
        if !times.is_sorted() {
            return Err(format!("the times of the chain's marks do not ascend: {times:?}"));
        }
        let mut marks = chain.marks();
        let (last_on_probation, on_probation) = chain.probation();
        let (mut count, mut at, mut last) = (0, chain.coldest().unwrap_or(NO_TUPLE), NO_TUPLE);
        while at != NO_TUPLE {
            if !self.tuples.is_live(at) || self.tuples.prev(at) != last {
                return Err(format!("the chain is broken at tuple {at}"));
            }
            if self.tuples.flags(at) & flag::MARKED != 0 && marks.next().map(|(id, _)| id) != Some(at) {
                return Err(format!("tuple {at} is marked, but the chain's next mark is at another"));
            }
            if (self.tuples.flags(at) & flag::PROBATION != 0) != (count < on_probation) {
                return Err(format!(
                    "tuple {at} is the chain's number {count}, but the first {on_probation} are on probation"
                ));
            }
            if count + 1 == on_probation && last_on_probation != Some(at) {
                return Err(format!("tuple {at} is the last on probation, but the chain says {last_on_probation:?}"));
            }
            (last, at, count) = (at, self.tuples.next(at), count + 1);
        }
        if let Some((id, _)) = marks.next() {
            return Err(format!("the chain has a mark at tuple {id}, which is not marked"));
        }
        if count != live || chain.len() != live {
            return Err(format!("the chain links {count} of {live} tuples"));
        }
        Ok(())
    }
}
