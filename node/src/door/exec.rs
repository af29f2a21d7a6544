use drowse_shared::api::{Code, Error};
pub(super) async fn exec() -> Error {
    Error::new(Code::NotImplemented, "soon")
}
