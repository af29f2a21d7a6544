use std::collections::BTreeMap;

/// The caller's own notes about a space.
pub type Metadata = BTreeMap<String, String>;

/// Most entries in a space's metadata.
pub const METADATA_ENTRIES_MAX: usize = 64;
/// Most characters of a key in a space's metadata.
pub const METADATA_KEY_CHARACTERS_MAX: usize = 128;
/// Most bytes of a value in a space's metadata.
pub const METADATA_VALUE_BYTES_MAX: usize = 4096;

/// Bytes of the keys and values.
pub fn metadata_bytes(metadata: &Metadata) -> usize {
    metadata.iter().map(|(key, value)| key.len() + value.len()).sum()
}

pub(super) fn metadata_fits(metadata: &Metadata, _: &()) -> garde::Result {
    if metadata.len() > METADATA_ENTRIES_MAX {
        return Err(garde::Error::new(format!(
            "has {} entries, at most {METADATA_ENTRIES_MAX}",
            metadata.len()
        )));
    }
    for (key, value) in metadata {
        if key.is_empty()
            || key.chars().count() > METADATA_KEY_CHARACTERS_MAX
            || key.chars().any(char::is_control)
        {
            return Err(garde::Error::new("a key has 1 to 128 characters and no control characters"));
        }
        if value.len() > METADATA_VALUE_BYTES_MAX {
            return Err(garde::Error::new(format!("the value of {key:?} is longer than 4,096 bytes")));
        }
    }
    Ok(())
}

pub(super) fn optional_metadata_fits(metadata: &Option<Metadata>, context: &()) -> garde::Result {
    metadata.as_ref().map_or(Ok(()), |m| metadata_fits(m, context))
}

/// The same rules, as the document of the API says them.
#[cfg(test)]
pub(super) fn limits(schema: &mut schemars::Schema) {
    schema.insert("maxProperties".to_owned(), METADATA_ENTRIES_MAX.into());
    let keys = serde_json::json!({ "minLength": 1, "maxLength": METADATA_KEY_CHARACTERS_MAX });
    schema.insert("propertyNames".to_owned(), keys);
    let values = serde_json::json!({ "type": "string", "maxLength": METADATA_VALUE_BYTES_MAX });
    schema.insert("additionalProperties".to_owned(), values);
}
