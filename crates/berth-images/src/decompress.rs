//! Reading of compressed streams, and their digests.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use sha2::{Digest, Sha256};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Magic numbers of skippable zstd frames, without their last four bits.
const ZSTD_SKIPPABLE: u32 = 0x184d_2a50;
const BUFFER: usize = 64 << 10;

/// A reader of the content of a stream that is compressed with gzip or zstd, or not compressed. The
/// first bytes determine the compression, because media types in manifests are not reliable.
pub(crate) enum Decompressed<R: Read> {
    Plain(BufReader<R>),
    Gzip(MultiGzDecoder<BufReader<R>>),
    Zstd(Box<Zstd<BufReader<R>>>),
}

impl<R: Read> Decompressed<R> {
    pub(crate) fn new(stream: R) -> io::Result<Self> {
        let mut stream = BufReader::with_capacity(BUFFER, stream);
        let start = stream.fill_buf()?;
        if start.starts_with(&GZIP) {
            return Ok(Self::Gzip(MultiGzDecoder::new(stream)));
        }
        let number = start.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        if start.starts_with(&ZSTD) || number.is_some_and(|number| number & !0xf == ZSTD_SKIPPABLE) {
            return Ok(Self::Zstd(Box::new(Zstd { stream, decoder: FrameDecoder::new(), is_open: false })));
        }
        Ok(Self::Plain(stream))
    }

    /// The compressed stream; the bytes after the content can be read from it.
    pub(crate) fn into_inner(self) -> BufReader<R> {
        match self {
            Self::Plain(stream) => stream,
            Self::Gzip(decoder) => decoder.into_inner(),
            Self::Zstd(decoder) => decoder.stream,
        }
    }
}

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zstd(decoder) => decoder.read(buffer),
        }
    }
}

/// Reader of all frames of a zstd stream: parallel compressors write several frames, and image
/// builders add skippable frames.
pub(crate) struct Zstd<R: BufRead> {
    stream: R,
    decoder: FrameDecoder,
    is_open: bool,
}

impl<R: BufRead> Zstd<R> {
    /// Begins the next frame. Returns false at the end of the stream.
    fn open(&mut self) -> io::Result<bool> {
        loop {
            if self.stream.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.stream) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    if io::copy(&mut (&mut self.stream).take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_open {
                if !self.open()? {
                    return Ok(0);
                }
                self.is_open = true;
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one_block = BlockDecodingStrategy::UptoBlocks(1);
                let decoded = self.decoder.decode_blocks(&mut self.stream, one_block);
                decoded.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            self.is_open = false;
        }
    }
}

/// A reader that computes the digest of its bytes.
pub(crate) struct Digested<R> {
    stream: R,
    hasher: Sha256,
}

impl<R: Read> Digested<R> {
    pub(crate) fn new(stream: R) -> Self {
        Self { stream, hasher: Sha256::new() }
    }

    /// Reads to the end. Returns the digest, `sha256:…`, and the stream.
    pub(crate) fn finish(mut self) -> io::Result<(String, R)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((format!("sha256:{}", hex::encode(self.hasher.finalize())), self.stream))
    }
}

impl<R: Read> Read for Digested<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

/// Digest of bytes, `sha256:…`.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn content() -> Vec<u8> {
        (0..300_000u32).flat_map(|number| (number / 7).to_le_bytes()).collect()
    }

    #[track_caller]
    fn check(stream: &[u8], expected: &[u8]) {
        let mut found = Vec::new();
        Decompressed::new(stream).expect("a stream").read_to_end(&mut found).expect("content");
        assert!(found == expected, "{} bytes, expected {}", found.len(), expected.len());
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).expect("compressed");
        encoder.finish().expect("compressed")
    }

    #[test]
    fn the_first_bytes_determine_the_compression() {
        check(&content(), &content());
        check(&gzip(&content()), &content());
        check(&compress_to_vec(&content()[..], CompressionLevel::Fastest), &content());
        check(b"", b"");
        check(b"\x1f", b"\x1f");
    }

    #[test]
    fn all_members_and_frames_of_a_stream_are_read() {
        let twice = [content(), content()].concat();
        check(&[gzip(&content()), gzip(&content())].concat(), &twice);
        let frame = compress_to_vec(&content()[..], CompressionLevel::Fastest);
        let skippable = [&(ZSTD_SKIPPABLE | 3).to_le_bytes()[..], &4u32.to_le_bytes(), b"skip"].concat();
        check(&[&skippable[..], &frame, &skippable, &frame, &skippable].concat(), &twice);
    }

    #[test]
    fn a_truncated_stream_is_an_error() {
        let frame = compress_to_vec(&content()[..], CompressionLevel::Fastest);
        for stream in [gzip(&content()), frame] {
            let half = &stream[..stream.len() / 2];
            let mut decompressed = Decompressed::new(half).expect("a stream");
            assert!(io::copy(&mut decompressed, &mut io::sink()).is_err());
        }
    }

    #[test]
    fn the_digest_includes_bytes_that_were_not_read() {
        let mut digested = Digested::new(&b"abc"[..]);
        digested.read_exact(&mut [0; 1]).expect("a byte");
        assert_eq!(digested.finish().expect("read").0, sha256(b"abc"));
    }
}
