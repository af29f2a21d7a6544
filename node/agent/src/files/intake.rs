use std::io::{self, Write};
use std::path::PathBuf;

use flate2::write::MultiGzDecoder;
use http::StatusCode;

use super::form::{self, Event, Form};
use super::http::Refusal;
use super::metadata::Notes;
use super::path;
use super::upload::Upload;
use crate::users::User;

/// Files one body may bring.
const PARTS_MAX: usize = 10_000;

/// What an upload asks for.
pub(super) struct Wish {
    /// As whom.
    pub(super) user: User,
    /// Where to, if the query says so.
    pub(super) path: Option<Vec<u8>>,
    /// Permission bits.
    pub(super) mode: Option<u32>,
    /// Noted at each file.
    pub(super) metadata: Notes,
}

/// A file that was taken in.
pub(super) struct Taken {
    /// Where it is.
    pub(super) path: PathBuf,
    /// How long it is.
    pub(super) size: u64,
}

impl From<form::Error> for Refusal {
    fn from(error: form::Error) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error.to_string())
    }
}

/// The body of one request on its way into files. All of it runs on file threads, as the user.
pub(super) enum Intake {
    /// As it came.
    Plain(Box<Files>),
    /// Unpacked on the way. The decoder can only tell of I/O errors, so refusals wait beside it.
    Gzip(Box<MultiGzDecoder<Files>>),
}

impl Intake {
    /// For a body of that content type, which is compressed or not.
    pub(super) fn new(wish: Wish, content_type: &str, gzip: bool) -> Result<Self, Refusal> {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        let form = if essence.eq_ignore_ascii_case("multipart/form-data") {
            Some(Form::new(content_type)?)
        } else if essence.is_empty() || essence.eq_ignore_ascii_case("application/octet-stream") {
            None
        } else {
            let words =
                format!("send files as application/octet-stream or multipart/form-data, not {essence:?}");
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, words));
        };
        let mut files = Files { wish, form, current: None, taken: Vec::new(), refusal: None };
        if files.form.is_none() {
            files.begin(None)?;
        }
        Ok(if gzip { Self::Gzip(Box::new(MultiGzDecoder::new(files))) } else { Self::Plain(Box::new(files)) })
    }

    /// Takes in a piece of the body.
    pub(super) fn feed(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        match self {
            Self::Plain(files) => files.feed(piece),
            Self::Gzip(decoder) => {
                let unpacked = decoder.write_all(piece);
                unpacked.map_err(|error| refusal(decoder.get_mut(), &error))
            }
        }
    }

    /// The body is over.
    pub(super) fn finish(self) -> Result<Vec<Taken>, Refusal> {
        match self {
            Self::Plain(files) => files.finish(),
            Self::Gzip(mut decoder) => {
                decoder.try_finish().map_err(|error| refusal(decoder.get_mut(), &error))?;
                let files = decoder.finish().map_err(|error| bad_gzip(&error))?;
                files.finish()
            }
        }
    }
}

fn refusal(files: &mut Files, error: &io::Error) -> Refusal {
    files.refusal.take().unwrap_or_else(|| bad_gzip(error))
}

fn bad_gzip(error: &io::Error) -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        format!("the upload is no whole gzip ({error}); nothing was changed"),
    )
}

/// The files of one body.
pub(super) struct Files {
    wish: Wish,
    /// `None` = the body is the file.
    form: Option<Form>,
    current: Option<(PathBuf, Upload)>,
    taken: Vec<Taken>,
    refusal: Option<Refusal>,
}

impl Files {
    fn feed(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        let Some(mut form) = self.form.take() else { return self.write(piece) };
        let fed = form.feed(piece, |event| self.meet(event));
        self.form = Some(form);
        fed
    }

    fn meet(&mut self, event: Event<'_>) -> Result<(), Refusal> {
        match event {
            // Other fields of the form are nobody's.
            Event::Part { name, .. } if name.as_deref() != Some("file") => Ok(()),
            Event::Part { file_name, .. } => self.begin(file_name),
            Event::Data(content) => self.write(content),
            Event::End => self.end(),
        }
    }

    fn begin(&mut self, file_name: Option<Vec<u8>>) -> Result<(), Refusal> {
        let bad = |words: String| Refusal::new(StatusCode::BAD_REQUEST, words);
        let given = self.wish.path.clone().or(file_name).filter(|path| !path.is_empty());
        let given = given.ok_or_else(|| bad("path is missing".to_owned()))?;
        let path = path::absolute(&self.wish.user, &given)?;
        if self.taken.iter().any(|taken| taken.path == path) {
            return Err(bad(format!("{} is sent twice", path.display())));
        }
        if self.taken.len() == PARTS_MAX {
            return Err(bad(format!("more than {PARTS_MAX} files: send the rest in another request")));
        }
        let upload = Upload::begin(&path, self.wish.mode)?;
        self.current = Some((path, upload));
        Ok(())
    }

    fn write(&mut self, content: &[u8]) -> Result<(), Refusal> {
        self.current.as_mut().map_or(Ok(()), |(_, upload)| upload.write(content))
    }

    fn end(&mut self) -> Result<(), Refusal> {
        if let Some((path, upload)) = self.current.take() {
            let size = upload.finish(&self.wish.metadata)?;
            self.taken.push(Taken { path, size });
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<Taken>, Refusal> {
        match &self.form {
            None => self.end()?,
            Some(form) => form.finish()?,
        }
        if self.taken.is_empty() {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "the form holds no part named file"));
        }
        Ok(self.taken)
    }
}

impl Write for Files {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        match self.feed(piece) {
            Ok(()) => Ok(piece.len()),
            Err(refusal) => {
                self.refusal = Some(refusal);
                Err(io::Error::other("refused"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
