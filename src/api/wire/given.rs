//! Parameters of a call as a struct: only parameters of the method, each with its type.

use serde::de::{self, DeserializeSeed, IntoDeserializer, MapAccess, Visitor};
use serde_json::{Value, map};

use super::Parameters;
use super::errors::Fault;
use crate::config::nearest;

/// Parameters that a client gave.
pub struct Given(pub Parameters);

impl<'de> de::Deserializer<'de> for Given {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, reader: V) -> Result<V::Value, Fault> {
        reader.visit_map(Fields { left: self.0.into_iter(), next: None })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        known: &'static [&'static str],
        reader: V,
    ) -> Result<V::Value, Fault> {
        match self.0.keys().find(|key| !known.contains(&key.as_str())) {
            Some(other) => Err(Fault::parameter(other, nearest(other, known.iter().copied()))),
            None => self.deserialize_any(reader),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Reads the parameters of a method from the parameters that a client gave.
pub fn read<M: de::DeserializeOwned>(parameters: Parameters) -> Result<M, Fault> {
    M::deserialize(Given(parameters))
}

struct Fields {
    left: map::IntoIter,
    next: Option<(String, Value)>,
}

impl<'de> MapAccess<'de> for Fields {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        self.next = self.left.next();
        let key = self.next.as_ref().map(|(key, _)| key.clone().into_deserializer());
        key.map(|key| seed.deserialize(key)).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let (key, value) = self.next.take().unwrap_or_default();
        seed.deserialize(value).map_err(|_| Fault::parameter(&key, None))
    }
}

impl de::Error for Fault {
    fn custom<T: std::fmt::Display>(text: T) -> Fault {
        Fault::parameter(&text.to_string(), None)
    }

    fn missing_field(field: &'static str) -> Fault {
        Fault::parameter(field, None)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::wire::{Capture, GetPort, WaitForPort};

    fn read<T: for<'de> Deserialize<'de>>(given: Value) -> Result<T, Fault> {
        let Value::Object(parameters) = given else { panic!("{given} is no object") };
        super::read(parameters)
    }

    #[test]
    fn each_parameter_is_known_there_if_needed_and_of_its_type() {
        assert_eq!(read(json!({"name": "a"})), Ok(GetPort { name: "a".to_owned() }));
        let wait: WaitForPort = read(json!({"name": "a", "state": null})).unwrap();
        assert!(wait.state.is_none() && wait.timeout_ms.is_none());
        let fault = |given: Value| read::<WaitForPort>(given).unwrap_err();
        assert_eq!(fault(json!({"nam": "a"})), Fault::parameter("nam", Some("name")));
        assert_eq!(fault(json!({})), Fault::parameter("name", None));
        assert_eq!(fault(json!({"name": null})), Fault::parameter("name", None));
        assert_eq!(fault(json!({"name": "a", "state": 1})), Fault::parameter("state", None));
        let filter = json!({"filter": [{"code": 1, "jt": 0, "jf": 256, "k": 0}]});
        assert_eq!(read::<Capture>(filter), Err(Fault::parameter("filter", None)));
        let missing = json!({"filter": [{"code": 1, "jt": 0, "k": 0}]});
        assert_eq!(read::<Capture>(missing), Err(Fault::parameter("filter", None)));
    }
}
