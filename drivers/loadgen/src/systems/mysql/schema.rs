//! Making the tables of a schema file anew.

use anticache_engine::catalog::Catalog;

use super::session::{MysqlServer, Use};
use crate::system::SystemError;

/// Creates the database if need be and in it the schema file's tables, in place of older ones of these names.
///
/// # Errors
/// [`SystemError::Data`] for a file whose tables cannot be told, else what mysqld refuses.
pub fn create(server: &MysqlServer, ddl: &str) -> Result<(), SystemError> {
    let catalog = Catalog::from_sql(ddl).map_err(|error| SystemError::Data(format!("the schema: {error}")))?;
    let database = &server.database;
    server
        .connect_without_database(Use::Bulk)?
        .execute(&format!("CREATE DATABASE IF NOT EXISTS `{database}` DEFAULT CHARACTER SET latin1"))?;
    let mut session = server.connect(Use::Bulk)?;
    for table in catalog.tables() {
        session.execute(&format!("DROP TABLE IF EXISTS {}", table.name))?;
    }
    session.execute(ddl)
}
