"""Small files of many formats, made in code."""

from __future__ import annotations

import base64
import io
import struct
import zipfile
import zlib
from collections.abc import Mapping

_ODF = "urn:oasis:names:tc:opendocument:xmlns:{}:1.0"
_NAMESPACES = " ".join(
    f'xmlns:{name}="{_ODF.format(long)}"'
    for name, long in [("office", "office"), ("text", "text"), ("table", "table"), ("draw", "drawing")]
    + [("presentation", "presentation")]
)


def make_zip(members: Mapping[str, bytes | str]) -> bytes:
    """An archive with these members; nothing is encrypted."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


def make_locked_zip(name: str, data: bytes, password: str, method: int = 0) -> bytes:
    """An archive with one member, encrypted in PKWARE's old way."""
    packed = make_zip({name: data})
    plain = bytes(11) + packed[17:18] + data  # its header ends with the highest byte of the checksum
    body = _zip_encrypted(plain, password.encode())
    sizes = struct.pack("<II", len(body), len(data))
    fields = struct.pack("<HH", 1, method) + packed[10:18] + sizes + struct.pack("<HH", len(name), 0)
    local = b"PK\x03\x04\x14\0" + fields + name.encode() + body
    entry = b"PK\x01\x02\x14\0\x14\0" + fields + bytes(14) + name.encode()
    return local + entry + b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, 1, 1, len(entry), len(local), 0)


def _zip_encrypted(data: bytes, password: bytes) -> bytes:
    keys = [0x12345678, 0x23456789, 0x34567890]

    def crc(value: int, byte: int) -> int:
        return zlib.crc32(bytes([byte]), value ^ 0xFFFFFFFF) ^ 0xFFFFFFFF

    def update(byte: int) -> None:
        keys[0] = crc(keys[0], byte)
        keys[1] = ((keys[1] + (keys[0] & 0xFF)) * 134775813 + 1) & 0xFFFFFFFF
        keys[2] = crc(keys[2], keys[1] >> 24)

    for byte in password:
        update(byte)
    out = bytearray()
    for byte in data:
        mask = (keys[2] & 0xFFFF) | 2
        out.append(byte ^ ((mask * (mask ^ 1)) >> 8 & 0xFF))
        update(byte)
    return bytes(out)


def make_odf(kind: str, body: str, manifest: str = "<manifest/>") -> bytes:
    """An OpenDocument file; `kind` is text, spreadsheet or presentation."""
    content = f"<office:document-content {_NAMESPACES}><office:body><office:{kind}>{body}</office:{kind}>"
    content += "</office:body></office:document-content>"
    mimetype = f"application/vnd.oasis.opendocument.{kind}"
    return make_zip({"mimetype": mimetype, "content.xml": content, "META-INF/manifest.xml": manifest})


def make_epub(chapters: Mapping[str, str]) -> bytes:
    """A book whose spine is the chapters in the order given."""
    items = "".join(
        f'<item id="c{n}" href="{name}" media-type="application/xhtml+xml"/>' for n, name in enumerate(chapters)
    )
    # written into the archive the other way round: the spine decides
    pages = {f"OEBPS/{name}": f"<html><body>{body}</body></html>" for name, body in reversed(list(chapters.items()))}
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
    return make_zip(
        {
            "mimetype": "application/epub+zip",
            **pages,
            "META-INF/container.xml": '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>',
            "OEBPS/book.opf": f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest>'
            f"<spine>{spine}</spine></package>",
        }
    )


def make_ole(streams: Mapping[str, bytes]) -> bytes:
    """An OLE container; "folder/name" puts a stream into a storage, at any depth.

    Streams are filled up with NULs to 4096 bytes: smaller ones would have to be packed together.
    """
    streams = {name: data.ljust(4096, b"\0") for name, data in streams.items()}
    folders = list(dict.fromkeys(name[:at] for name in streams for at, sign in enumerate(name) if sign == "/"))
    entries: list[tuple[str, int, int, int, int, int]] = []  # name, kind, right sibling, child, first sector, size
    order = sorted([*folders, *streams], key=lambda name: name.count("/"))  # the first is below the root
    number = {name: at for at, name in enumerate(order, start=1)}
    sectors: list[bytes] = []
    table: list[int] = []
    entries.append(("Root Entry", 5, -1, 1, -2, 0))
    for name in order:
        group = [other for other in order if other.rpartition("/")[0] == name.rpartition("/")[0]]
        place = group.index(name)
        right = number[group[place + 1]] if place + 1 < len(group) else -1
        if name in folders:
            child = next(number[other] for other in order if other.rpartition("/")[0] == name)
            entries.append((name.rpartition("/")[2], 1, right, child, 0, 0))
            continue
        data = streams[name]
        first, count = len(sectors), max(1, -(-len(data) // 512))
        sectors.extend(data[at * 512 : at * 512 + 512].ljust(512, b"\0") for at in range(count))
        table.extend([*range(first + 1, first + count), -2])
        entries.append((name.rpartition("/")[2], 2, right, -1, first, len(data)))
    directory = b"".join(_ole_entry(*entry) for entry in entries)
    begin, count = len(sectors), -(-len(directory) // 512)
    sectors.extend(directory[at * 512 : at * 512 + 512].ljust(512, b"\0") for at in range(count))
    table.extend([*range(begin + 1, begin + count), -2])
    table.append(-3)
    fat = struct.pack("<128i", *table, *[-1] * (128 - len(table)))
    head = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16) + struct.pack("<HHHHH", 0x3E, 3, 0xFFFE, 9, 6) + bytes(6)
    head += struct.pack("<IIiIIiIiI", 0, 1, begin, 0, 4096, -2, 0, -2, 0)
    return head + struct.pack("<109i", len(sectors), *[-1] * 108) + b"".join(sectors) + fat


def _ole_entry(name: str, kind: int, right: int, child: int, first: int, size: int) -> bytes:
    raw = name.encode("utf-16-le")
    head = raw.ljust(64, b"\0") + struct.pack("<HBBiii", len(raw) + 2, kind, 1, -1, right, child)
    return head + bytes(36) + struct.pack("<iII", first, size, 0)


def make_msg(
    properties: Mapping[str, str | bytes], attachment: tuple[str, bytes] | None = None, sent: int = 0
) -> bytes:
    """An Outlook mail; keys are property tags of four digits, `sent` is in ticks since 1601."""
    return make_ole(_mail_streams(properties, attachment, sent))


def make_forwarded(properties: Mapping[str, str | bytes], inner: Mapping[str, str | bytes], depth: int) -> bytes:
    """An Outlook mail to which another one is attached, and to that the same again, so many times."""
    streams = _mail_streams(properties, None, 0)
    folder = ""
    for _ in range(depth):
        folder += "__attach_version1.0_#00000000/__substg1.0_3701000D/"
        streams |= {folder + name: data for name, data in _mail_streams(inner, None, 0, header=24).items()}
    return make_ole(streams)


def _mail_streams(
    properties: Mapping[str, str | bytes], attachment: tuple[str, bytes] | None, sent: int, header: int = 32
) -> dict[str, bytes]:
    streams = {f"__substg1.0_{tag}{_kind(value)}": _raw(value) for tag, value in properties.items()}
    streams["__properties_version1.0"] = bytes(header) + struct.pack("<IIQ", 0x00390040, 6, sent)
    if attachment:
        folder = "__attach_version1.0_#00000000"
        streams[f"{folder}/__substg1.0_3707001F"] = _raw(attachment[0])
        streams[f"{folder}/__substg1.0_37010102"] = attachment[1]
    return streams


def _kind(value: str | bytes) -> str:
    return "001F" if isinstance(value, str) else "0102"


def _raw(value: str | bytes) -> bytes:
    return value.encode("utf-16-le") if isinstance(value, str) else value


# No maintained library writes this format: a title over merged cells, a header, a label merged over two rows with
# a date, a percentage and a formula's value, and a hidden sheet that says "secret".
XLS = zlib.decompress(
    base64.b85decode(
        "c-rk)T}V_x6#i!JUEN*$Sxo~COa!+w6*Gul^j1(3lvq6!5#`S=6`Ma?EwYEQY@rvS@TH<21Pywzdg+Hsie7>OErTEkwD2hif`T5@"
        "+nKZXnm-%3P)o}FmN_$XX3m*2XU_cW9U0CV>${gfj(MnthH1-(lvzAM$>&r8pmxhrMJM-CvRo`F_`I}`DIPpdf1Rq<P_6ekB<||Z"
        "i2|P}9YPywTU)|~NyIj`p+P7cs)SClCvk&P2J+ahY^F_2S1`T9eV;Jh!kiwaRn&J(9K^6uTe8`X;{&pY+cJm>JYbm*%-Mikyi{>~"
        "?y`vW^<b-cyy3*MZz#~y&<_fNns7_lRP{^@zz=j1%9@+YLZJfPhg;Brit>u$G2~FR^y7zB2z+;rg=d8>Ke>DX;{Tk>PyGYmODh_W"
        "ua-3)-w%BOzgJQKbit|@YVSmmhCyAmND=J$dMZk~ys0Xz1Wr$4rwS-LiAq$U5}QchK;yAXBt2T&dzi9`@am(K)$e;3q3q3-n^);3"
        "+0|f1+S^W=bRe~do6K;BU)?@@S_S5uR_VNl(};$U$>l8G$pM<}<n3>7cQ@7<N0`&aH&pB%D^|0Bh4V^+gfqBBpP?lzv7YG#*1C$z"
        "`Al<Y(@-9)%e4zTy1CCqZVl2n8yTa<npx$wRE~bx^ROWL*;q&A!J6?iIfL(wJ`|DHLhLhvZj_2ras8UYBg4ssed2v&nz!Ke^U8p2"
        "yJcV2nV3?$mypGDh<pV0j{0dVA>v2~mQXZSbNm^rNtShL8r5`rbQwpNWL+MjXQiJ#l#P-R2~Db#SCZ{^R2i{$jXZ0;@UcE^p1vXS"
        "m}bxBDe2KzTlt96@=C=YJW}=0*!l_fmt+YC8meVB?kl6{hWL$SM3$JLOEt1Y+{jXXVy_~eS6#Sp;lhOr7yly!znoydw!m+-6#L1p"
        "zUxd;nsz^vEL-eFEB!j?KiPJ)P;R0#q4-$|k8pH}Manqe3l;X$=q4g)WIG}W$1lBI#q9YkS}^eUwoszuPbXsMKOX-Vyp1UB"
    )
)
