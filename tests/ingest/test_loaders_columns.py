"""PDF pages whose columns are written row by row, and pages that only look like it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from server.ingest.loaders.factory import loader_for
from tests.ingest.pdf_maker import make_pdf, placed

Row = Sequence[str]

BOILERS = textwrap.wrap(
    "The boilers in the north house were repaired in the spring and approved by all of the inspectors who came to "
    "see them before the summer. Each of the valves was opened twice and closed again before the crew went home, "
    "and nobody found a leak in any of them. In the autumn the same crew will come back and look at the pumps, which "
    "have been running since the flood without a single day of rest, as the keeper of the house wrote down.",
    42,
)
SALT = textwrap.wrap(
    "Salt is weighed at the east quay before it goes to the warehouse, and the clerk writes the weight into the "
    "ledger of the day. Nobody may touch the scales while the tide bell rings at noon, because the platform moves "
    "with the water. Whoever finds a difference of more than one sack tells the harbour master, who has the load "
    "weighed again and signs the page himself, together with the captain of the ship that brought it in.",
    42,
)
LAMPS = textwrap.wrap(
    "Lamps are lit an hour before the sun goes down and are put out when the first ferry has left the pier. The oil "
    "comes from the store behind the chapel, where a barrel lasts for about three weeks in the winter. A lamp that "
    "smokes is taken down at once, cleaned with sand and vinegar, and hung up again by the man who has the watch.",
    42,
)
PUMPS = textwrap.wrap(
    "第三号泵房在今日上午的巡检当中没有发现渗漏现象压力表读数一切正常值班人员随后检查了备用水泵的轴承温度"
    "并且在记录本上签下了自己的名字夜间还要再检查一次管道阀门与配电箱的状态如有异常应当立即报告值班主任"
    "由主任决定是否停机检修以及通知下游各个村庄做好准备防止水位突然上涨造成农田被淹没",
    16,
)
GATES = textwrap.wrap(
    "北闸在戌时关闭之后任何船只不得通过若有运送药品的船只到来则由闸官查验文书以后开启侧门放行并登记船号"
    "人数以及货物名称次日清晨由书吏抄录一份送往府城存档凡是没有文书的船只一律停泊在外港等候天亮以后再行"
    "处置违者罚银五两所罚银两全部用于修缮堤坝和购买灯油不得挪作他用违者严惩不贷",
    16,
)


def rows(*columns: Row, at: Sequence[float], top: float = 780) -> Iterator[tuple[float, float, str]]:
    """Every row of the columns from left to right, and then the next."""
    for number, row in enumerate(zip_longest(*columns, fillvalue="")):
        yield from ((x, top - 14 * number, text) for x, text in zip(at, row, strict=True) if text)


def read(*texts: tuple[float, float, str]) -> str:
    document = loader_for("a.pdf").load(make_pdf([placed(texts)]), "a.pdf")
    return document.blocks[0].text


def in_order(text: str, *columns: Row) -> bool:
    """Whether each column is there as one running text, and they follow each other."""
    whole = "".join(text.split())
    places = [whole.find("".join("".join(column).split())) for column in columns]
    return places[0] > -1 and places == sorted(set(places))


def test_two_columns_are_read_one_after_the_other() -> None:
    text = read(*rows(BOILERS, SALT, at=(50, 310)))
    assert in_order(text, BOILERS, SALT)
    assert " ".join(BOILERS[:3]) in text


def test_three_columns_of_unlike_length_are_read_one_after_the_other() -> None:
    columns = [textwrap.wrap(" ".join(lines), 28) for lines in (BOILERS, SALT[:-2], LAMPS)]
    assert in_order(read(*rows(*columns, at=(40, 215, 390))), *columns)


def test_chinese_columns_are_read_one_after_the_other() -> None:
    assert in_order(read(*rows(PUMPS, GATES, at=(50, 240))), PUMPS, GATES)


def test_columns_need_not_stand_on_the_same_line() -> None:
    texts = [(x, y - 4 if x > 300 else y, text) for x, y, text in rows(BOILERS, SALT, at=(50, 310))]
    assert in_order(read(*texts), BOILERS, SALT)


def test_what_spans_the_columns_keeps_its_place() -> None:
    title = "A report on the boilers of the north house and on the salt that passes the east quay of the harbour"
    middle = "Written by the keeper of the house and by the clerk of the quay, who have both signed each page of it"
    text = read(
        (50, 800, "Harbour Office"),
        (450, 800, "Page 7"),
        (50, 760, title),
        *rows(BOILERS[:5], SALT[:5], at=(50, 310), top=730),
        (50, 640, middle),
        *rows(BOILERS[5:], SALT[5:], at=(50, 310), top=610),
    )
    parts = ["Harbour Office Page 7"], [title], BOILERS[:5], SALT[:5], [middle], BOILERS[5:], SALT[5:]
    assert in_order(text, *parts)


def test_a_running_header_is_no_part_of_the_columns() -> None:
    text = read((50, 815, "Harbour Office"), (430, 815, "Page 7"), *rows(BOILERS, SALT, at=(50, 310)))
    assert in_order(text, ["Harbour Office Page 7"], BOILERS, SALT)


def test_columns_in_the_order_of_the_file_stay() -> None:
    left, right = rows(BOILERS, at=(50,)), rows(SALT, at=(310,))
    assert in_order(read(*right, *left), SALT, BOILERS)


def same_row(text: str, *cells: str) -> bool:
    return "".join(cells).replace(" ", "") in text.replace(" ", "")


def test_a_table_keeps_its_rows() -> None:
    goods = ["Salt in sacks", "Oil", "Timber, sawn", "Rope of hemp", "Iron bars", "Sail cloth", "Tar", "Grain, dry"] * 2
    notes = [
        "weighed at noon",
        "by the barrel",
        "dry wood only",
        "in coils",
        "not rusty",
        "white",
        "hot",
        "no rats",
    ] * 2
    text = read(*rows(goods, notes, at=(50, 310)))
    assert same_row(text, goods[2], notes[2])
    counts = [f"{number * 7919} {number * 104729} {number * 15485863}" for number in range(10, 10 + len(BOILERS))]
    assert same_row(read(*rows(BOILERS, counts, at=(50, 310))), BOILERS[3], counts[3])


def test_a_table_with_long_cells_keeps_its_rows() -> None:
    texts = [
        (x, y - 10 * (number // 3), text)
        for x, column in ((50, BOILERS[:9]), (310, SALT[:9]))
        for number, (_, y, text) in enumerate(rows(column, at=(x,)))
    ]
    text = read(*sorted(texts, key=lambda item: (-item[1], item[0])))
    assert same_row(text, BOILERS[4], SALT[4])


def test_a_table_of_contents_keeps_its_rows() -> None:
    text = read(*rows(BOILERS, [str(number) for number in range(3, 3 + len(BOILERS))], at=(50, 500)))
    assert same_row(text, BOILERS[4], "7")


def test_a_form_keeps_its_rows() -> None:
    fields = ["Name of the ship", "Captain", "Port of departure", "Load", "Draught", "Crew", "Insured by", "Flag"]
    assert same_row(read(*rows(fields, BOILERS[:8], at=(50, 200))), "Captain", BOILERS[1])


def test_a_few_rows_side_by_side_stay() -> None:
    assert same_row(read(*rows(BOILERS[:5], SALT[:5], at=(50, 310))), BOILERS[2], SALT[2])
