use drowse_shared::api::{Code, Error};
pub(super) async fn read() -> Error {
    Error::new(Code::NotImplemented, "soon")
}
pub(super) async fn write() -> Error {
    Error::new(Code::NotImplemented, "soon")
}
pub(super) async fn write_many() -> Error {
    Error::new(Code::NotImplemented, "soon")
}
pub(super) async fn list() -> Error {
    Error::new(Code::NotImplemented, "soon")
}
