//! STAND-IN: profiles until the mechanical model is merged.

use serde::{Deserialize, Serialize};

/// A profile could not be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ProfileError(pub String);

/// What a drive is like.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Profile {
    /// Its name.
    pub name: String,
}

impl Profile {
    /// Finds a built-in profile.
    pub fn load(name: &str) -> Result<Self, ProfileError> {
        if Self::built_in().contains(&name) {
            Ok(Self { name: name.to_owned() })
        } else {
            Err(ProfileError(format!("no profile {name}")))
        }
    }

    /// Names of the built-in profiles.
    pub fn built_in() -> &'static [&'static str] {
        &["hdd-7200", "none"]
    }

    /// Whether there is no model.
    pub fn is_none(&self) -> bool {
        self.name == "none"
    }
}
