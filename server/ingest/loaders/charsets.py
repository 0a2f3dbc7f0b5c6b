"""How much a text looks as if it had been decoded with the right legacy charset.

Each score is the mean over the characters outside ASCII, about 0 (noise) to 1 (ordinary prose). The
letters listed are those that cover most of a running text in the languages that use the charset.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable

_HANZI_BOTH = (
    "的一是不了在人有我他中上大和地到以要就出可也你生能而子那得下自之年作用道行所然家事成方多去法"
    "如都同面起看定天分好小部其些主理心她本前但因只想日者意力它把十民第公此已工使情明性知全三又正外"
    "高由很最重物手向文政美相被利什二等或新己制身果加西月合回特代信表化老世位次度任常先海通教原立"
    "及比水名真各入口平系更女四神何安少才反受目太量再感建做接必件管期市直德命山金指克保至社便空治"
    "科司五基眼非即且王完色路南品住告求程北死交取拉格望共清今切候且曰皇兵城下百千六七八九周州操布"
    "元玉文字引典首考版永火木土石左右光里卷日本"
)
_SIMPLIFIED = _HANZI_BOTH + (
    "这个们来为国说时会对于着过发后种经么学现当没动还进样开从实军无与长机关点业将两间问并应战头体见"
    "产话内给门儿东声员解论处走义几认条气题活尔别打变总电数报结务场计资许统区队形决展马书则听却界达"
    "放强像难权思象设式记类据边张该规万觉术领确传师观院让识带导争运备刘飞异虽录请选页图网软号码线"
)
_TRADITIONAL = _HANZI_BOTH + (
    "這個們來為國說時會對於著過發後種經麼學現當沒動還進樣開從實軍無與長機關點業將兩間問並應戰頭體見"
    "產話內給門兒東聲員解論處走義幾認條氣題活爾別打變總電數報結務場計資許統區隊形決展馬書則聽卻界達"
    "放強像難權思象設式記類據邊張該規萬覺術領確傳師觀院讓識帶導爭運備劉飛異雖錄請選頁圖網號碼線裡"
)
_KANJI = (
    "日一国人年大十二本中長出三時行見月分後前生五間上東四今金九入学高円子外八六下来気小七山話女北午"
    "百書先名川千水半男西電校語土木聞食車何南万毎白天母火右読友左休父雨会同事自社発者地業方新場員立"
    "開手力問代明動京目通言理体田主題意不作用度強公持野以思家世多正安院心界教文元重近考画海売知道集"
)
_HANGUL = (
    "이다는을의에가고하은한로도를지사어기대자인나리해그있서시스아일과정수라들것으전보원제동장여주부만"
    "성소상조구게오되와면신위비세무유생국문경적선공간회관연계개안마용요데까우거때더없말모진"
)

_Weight = Callable[[str], float]


def _lead_byte(char: str, codec: str) -> int:
    encoded = char.encode(codec, "ignore")
    return encoded[0] if len(encoded) == 2 else 0


def _is_cjk_mark(char: str) -> bool:
    return "\u3001" <= char <= "\u301f" or "\uff01" <= char <= "\uff20" or char in "“”‘’…—·"


def _hanzi_weight(common: frozenset[str], codec: str, leads: range) -> _Weight:
    def weight(char: str) -> float:
        if char in common or _is_cjk_mark(char):
            return 1.0
        if "\u4e00" <= char <= "\u9fff":
            return 0.4 if _lead_byte(char, codec) in leads else 0.1
        return 0.05 if unicodedata.category(char) not in ("Co", "Cn", "Cc") else -1.0

    return weight


def _japanese_weight(codec: str, leads: range) -> _Weight:
    hanzi = _hanzi_weight(frozenset(_KANJI), codec, leads)

    def weight(char: str) -> float:
        if "\u3041" <= char <= "\u30fe":
            return 1.0
        # Half-width katakana is one byte in Shift-JIS, so any noise is full of it.
        return -0.2 if "\uff61" <= char <= "\uff9f" else hanzi(char)

    return weight


def _korean_weight(char: str) -> float:
    if char in _HANGUL:
        return 1.0
    if "\uac00" <= char <= "\ud7a3":
        # Syllables beyond the old standard are rare, and are what a stray accent makes of the letter behind it.
        return 0.55 if _lead_byte(char, "euc_kr") else 0.1
    return 0.5 if _is_cjk_mark(char) else -0.1


def _wide_weight(char: str) -> float:
    if char in _SIMPLIFIED or char in _TRADITIONAL or char in _KANJI or char in _HANGUL:
        return 1.0
    if "\u3041" <= char <= "\u30fe" or _is_cjk_mark(char):
        return 1.0
    return 0.3 if "\u4e00" <= char <= "\u9fff" else -0.5


_CJK_WEIGHTS: dict[str, _Weight] = {
    "gb18030": _hanzi_weight(frozenset(_SIMPLIFIED), "gb2312", range(0xB0, 0xD8)),
    "big5hkscs": _hanzi_weight(frozenset(_TRADITIONAL), "big5", range(0xA4, 0xC7)),
    "cp932": _japanese_weight("cp932", range(0x88, 0x98)),
    "euc_jp": _japanese_weight("euc_jp", range(0xB0, 0xD0)),
    "cp949": _korean_weight,
    "utf-16-le": _wide_weight,
    "utf-16-be": _wide_weight,
}

# Letters that fill running text, lower case; other letters of the script count half.
_LETTERS: dict[str, tuple[str, str]] = {
    "cp1251": ("CYRILLIC", "оеаинтсрвлкмдпуя"),
    "koi8_r": ("CYRILLIC", "оеаинтсрвлкмдпуя"),
    "cp866": ("CYRILLIC", "оеаинтсрвлкмдпуя"),
    "cp1253": ("GREEK", "αοιετσνηυρπκμλόίάήέ"),
    "cp1255": ("HEBREW", "יוהלאתשרמבנדעםחק"),
    "cp1256": ("ARABIC", "اليمونترهبسعدكحقفةىأ"),
    "cp874": ("THAI", "านรกเงมยลวดทสต่้ัีิ์"),
    "cp1252": ("LATIN", "éèàçùüöäßñóíáêôâîåøæúãõëï"),
    "cp1254": ("LATIN", "ğışçöüİâî"),
    "cp1250": ("LATIN", "ąęłśżźćńóčěřšžýáíéúůőűöü"),
}
# Forms that stand at the end of a word only.
_HEBREW_FINALS = frozenset("ךםןףץ")

CANDIDATES: tuple[str, ...] = (*_CJK_WEIGHTS, *_LETTERS)
"""Python codec names that are tried on bytes that are not Unicode, the likeliest first."""


def score(text: str, codec: str) -> float:
    """How much `text`, decoded with `codec`, looks like prose; needs a character outside ASCII."""
    weight = _CJK_WEIGHTS.get(codec)
    if weight is None:
        return _alphabet_score(text, *_LETTERS[codec])
    counts = Counter(char for char in text if char > "\x7f")
    return sum(weight(char) * n for char, n in counts.items()) / max(1, counts.total())


def _alphabet_score(text: str, script: str, frequent: str) -> float:
    marks = {char: _letter_weight(char, script, frequent) for char in set(text) if char > "\x7f"}
    total, points, before = 0, 0.0, " "
    for char in text:
        if char > "\x7f":
            total += 1
            points += marks[char] - _strangeness(before, char, script)
        before = char
    return points / max(1, total)


def _letter_weight(char: str, script: str, frequent: str) -> float:
    if char in frequent:
        return 1.0
    if unicodedata.name(char, "").startswith(script):
        return 0.8 if char.lower() in frequent else 0.35 if char.isupper() else 0.5
    if char in "“”‘’„–—…€£§°«»•©®™\xa0№":
        return 0.5
    return 0.2 if unicodedata.category(char)[0] in "PS" else -0.5


def _strangeness(before: str, char: str, script: str) -> float:
    """What two neighbours cost that hardly ever meet in a word of that script."""
    if char.isupper() and before.islower():
        return 0.8
    if script == "LATIN":
        # An accented letter stands alone between plain ones; runs of them are another charset.
        return 0.6 if before > "\x7f" and before.isalpha() else 0.0
    if before in _HEBREW_FINALS and char.isalpha():
        return 0.8
    return 0.6 if before < "\x7f" and before.isalpha() else 0.0
