//! Compressed headers of SPDY/3: one zlib stream in each direction, with a dictionary of common
//! headers (draft 3.1, section 2.6.10).

use std::collections::BTreeMap;
use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};

/// Maximum size of a frame's header block after decompression, in bytes.
const BLOCK_BYTES_MAX: usize = 64 * 1024;

/// Names and values that precede [`TAIL`] in the dictionary, each with its length, separated by
/// `|`.
const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|\
accept-ranges|age|allow|authorization|cache-control|connection|content-base|content-encoding|content-language|\
content-length|content-location|content-md5|content-range|content-type|date|etag|expect|expires|from|host|if-match|\
if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|location|max-forwards|pragma|\
proxy-authenticate|proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|upgrade|\
user-agent|vary|via|warning|www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|public|set-cookie|\
keep-alive|origin";

/// The rest of the dictionary.
const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept \
Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8\
charset=iso-8859-1,utf-,*,enq=0.";

/// The dictionary.
fn dictionary() -> Vec<u8> {
    let mut dictionary = Vec::new();
    for word in WORDS.split('|') {
        dictionary.put_u32(word.len() as u32);
        dictionary.put_slice(word.as_bytes());
    }
    dictionary.put_slice(TAIL.as_bytes());
    dictionary
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed SPDY headers: {what}"))
}

/// Names and values of one frame. Names are in lower case.
pub(super) type Headers = BTreeMap<String, String>;

/// Decompresses the header blocks of one direction, in their order.
pub(super) struct Inflater {
    raw: Decompress,
    /// True if the header of the zlib stream was read.
    has_begun: bool,
}

impl Inflater {
    pub(super) fn new() -> Inflater {
        // A dictionary is content that precedes the stream. The decompressor gets it as a stored
        // block (RFC 1951, section 3.2.4), so that no particular backend of flate2 is needed.
        let dictionary = dictionary();
        let length = dictionary.len() as u16;
        let mut stored = vec![0];
        stored.put_u16_le(length);
        stored.put_u16_le(!length);
        stored.extend(&dictionary);
        let mut raw = Decompress::new(false);
        let mut output = Vec::with_capacity(dictionary.len() + 1);
        let read = raw.decompress_vec(&stored, &mut output, FlushDecompress::Sync);
        debug_assert!(read.is_ok() && output == dictionary, "a stored block decompresses to its content");
        Inflater { raw, has_begun: false }
    }

    /// The headers in a block.
    pub(super) fn headers(&mut self, block: &[u8]) -> io::Result<Headers> {
        parse(self.inflate(block)?.into())
    }

    fn inflate(&mut self, mut block: &[u8]) -> io::Result<Vec<u8>> {
        if !self.has_begun {
            block = skip_zlib_header(block)?;
            self.has_begun = true;
        }
        let mut output = Vec::with_capacity(1024);
        loop {
            let (read, written) = (self.raw.total_in(), output.len());
            let result = self.raw.decompress_vec(block, &mut output, FlushDecompress::Sync);
            result.map_err(|_| malformed("they cannot be decompressed"))?;
            block = &block[(self.raw.total_in() - read) as usize..];
            if output.len() > BLOCK_BYTES_MAX {
                return Err(malformed("they exceed the limit"));
            }
            if output.len() == output.capacity() {
                output.reserve(output.len());
            } else if block.is_empty() {
                return Ok(output);
            } else if self.raw.total_in() == read && output.len() == written {
                return Err(malformed("they continue after the end of the compressed stream"));
            }
        }
    }
}

/// A zlib stream without its header (RFC 1950, section 2.2) and the dictionary's checksum.
fn skip_zlib_header(mut block: &[u8]) -> io::Result<&[u8]> {
    let header = block.try_get_u16().map_err(|_| malformed("they are too short"))?;
    if header >> 8 & 0xf != 8 || header % 31 != 0 {
        return Err(malformed("they are not a zlib stream"));
    }
    if header & 0x20 != 0 {
        block.try_get_u32().map_err(|_| malformed("they are too short"))?;
    }
    Ok(block)
}

fn parse(mut block: Bytes) -> io::Result<Headers> {
    let mut headers = Headers::new();
    let text = |block: &mut Bytes| {
        let length = block.try_get_u32().map_err(|_| malformed("they are truncated"))? as usize;
        if length > block.len() {
            return Err(malformed("they are truncated"));
        }
        Ok(String::from_utf8_lossy(&block.split_to(length)).into_owned())
    };
    let count = block.try_get_u32().map_err(|_| malformed("they are truncated"))?;
    for _ in 0..count {
        let (name, value) = (text(&mut block)?, text(&mut block)?);
        headers.insert(name.to_ascii_lowercase(), value);
    }
    Ok(headers)
}

/// Compresses the header blocks of one direction. Its zlib stream uses no dictionary. Every
/// decompressor accepts that, because the first bytes of a stream show whether it uses one.
pub(super) struct Deflater(Compress);

impl Deflater {
    pub(super) fn new() -> Deflater {
        Deflater(Compress::new(Compression::fast(), true))
    }

    /// A block with these headers.
    pub(super) fn block(&mut self, headers: &Headers) -> io::Result<Bytes> {
        let mut plain = BytesMut::new();
        plain.put_u32(headers.len() as u32);
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.put_u32(text.len() as u32);
            plain.put_slice(text.as_bytes());
        }
        let mut output = Vec::with_capacity(plain.len() + 64);
        let mut rest = &plain[..];
        loop {
            let read = self.0.total_in();
            self.0.compress_vec(rest, &mut output, FlushCompress::Sync).map_err(io::Error::other)?;
            rest = &rest[(self.0.total_in() - read) as usize..];
            if rest.is_empty() && output.len() < output.capacity() {
                return Ok(output.into());
            }
            output.reserve(64 + output.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adler32(bytes: &[u8]) -> u32 {
        let (low, high) = bytes.iter().fold((1_u32, 0_u32), |(low, high), byte| {
            let low = (low + u32::from(*byte)) % 65_521;
            (low, (high + low) % 65_521)
        });
        high << 16 | low
    }

    #[test]
    fn the_dictionary_is_that_of_the_standard() {
        let dictionary = dictionary();
        assert_eq!((dictionary.len(), adler32(&dictionary)), (1423, 0xe3c6_a7c2));
    }

    #[test]
    fn headers_of_many_blocks_decode_to_themselves() {
        let (mut deflater, mut inflater) = (Deflater::new(), Inflater::new());
        for number in 0..100 {
            let headers = Headers::from([
                ("streamtype".to_owned(), "data".to_owned()),
                ("port".to_owned(), "8080".to_owned()),
                ("requestid".to_owned(), number.to_string()),
            ]);
            let block = deflater.block(&headers).unwrap();
            assert_eq!(inflater.headers(&block).unwrap(), headers);
        }
        assert_eq!(inflater.headers(&deflater.block(&Headers::new()).unwrap()).unwrap(), Headers::new());
    }

    #[test]
    fn a_block_compressed_with_the_dictionary_is_read() {
        // zlib with the dictionary, level 9, flushed: {"content-type": "text/plain"}.
        let block = hex(DICTIONARY_BLOCK);
        let headers = Inflater::new().headers(&block).unwrap();
        assert_eq!(headers, Headers::from([("content-type".to_owned(), "text/plain".to_owned())]));
    }

    const DICTIONARY_BLOCK: &str = "78f9e3c6a7c202a623462c850917c21500000000ffff";

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn malformed_and_oversized_blocks_are_errors() {
        let large = Headers::from([("a".to_owned(), "x".repeat(BLOCK_BYTES_MAX))]);
        let large = Deflater::new().block(&large).unwrap();
        assert!(large.len() < 1024, "it would pass the limit of frames");
        for block in [&large[..], b"", b"\x78", b"\x78\xbb\x00", b"\x00\x01\x02\x03", b"\x78\x9c\xff\xff\xff"] {
            assert!(Inflater::new().headers(block).is_err(), "{block:?}");
        }
        let mut cut = Compress::new(Compression::fast(), true);
        let mut block = Vec::with_capacity(100);
        cut.compress_vec(b"\x00\x00\x00\x01\x7f\xff\xff\xffname", &mut block, FlushCompress::Sync).unwrap();
        assert!(Inflater::new().headers(&block).is_err());
    }
}
