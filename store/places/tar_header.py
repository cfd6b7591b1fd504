"""Headers in tars that others made, which lead ahead and end."""

import tarfile

HEADER_NBYTES = 1 << 15  # at most, of a name or of further fields before a member; tarfile searches them again and again
BEFORE = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


class UntrustedHeader(tarfile.TarInfo):
    """Header of a member whose size leads ahead; tarfile would go back, or read as much as it says of a name."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "UntrustedHeader":
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (header.type in BEFORE and header.size > HEADER_NBYTES):
            raise tarfile.ReadError(f"a header of {header.size} bytes")
        return header
