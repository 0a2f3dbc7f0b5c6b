"""Texts and questions, the same ones every time, made here so that nothing has to be downloaded.

Words follow Zipf's law: a few stand everywhere and most are rare. That is what gives a keyword index its
long and its short lists, which decide what a search costs. The common words are real ones, so that stop
words are stop words; the long tail is invented: words of syllables in English, names in Chinese.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Language = Literal["en", "zh"]

_ENGLISH_COMMON = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they "
    "which one you were all her she there would their we him been has when who will no more if out so up said what "
    "its about than into them can only other time new some could these two may first then do any like my now over "
    "such our man me even most made after also did many off before must well back through years much where your way "
    "down should because long each just state those people too mr how little good world make very year still see "
    "own work men day get here old life both between being under three never know same last another while us might"
)
_SYLLABLES = (
    "ba be bi bo bu ca ce co da de di do du fa fe fi fo ga ge go ha he hi ho ja jo ka ke ki ko la le li lo lu ma me "
    "mi mo mu na ne ni no nu pa pe pi po pu ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo wa we wi za zo "
    "bran cher dron flen grim hort plas quen stor trel"
)
_CHINESE_COMMON = (
    "的 是 在 和 了 有 与 为 不 对 中 上 这 到 也 以 就 或 我们 可以 并 将 从 及 等 其 而 被 把 都 还 又 "
    "他们 自己 没有 一个 这个 进行 通过 使用 需要 根据 由于 因此 如果 但是 所以 以及 同时 其中 "
    "系统 数据 用户 文件 服务 管理 信息 技术 项目 问题 方法 结果 工作 公司 产品 市场 客户 合同 法律 规定 "
    "责任 权利 义务 条款 协议 费用 价格 时间 地点 人员 部门 组织 单位 政府 国家 社会 经济 发展 改革 政策 "
    "教育 学校 学生 老师 课程 考试 研究 科学 实验 分析 设计 开发 测试 部署 运行 维护 升级 安装 配置 参数 "
    "网络 安全 密码 权限 账户 登录 注册 验证 加密 备份 恢复 日志 监控 报警 故障 错误 异常 处理 解决 修复 "
    "数据库 索引 查询 缓存 内存 硬盘 存储 计算 模型 训练 推理 向量 检索 文档 知识 语言 文本 图像 视频 音频 "
    "医院 医生 病人 治疗 药物 症状 检查 手术 健康 疾病 预防 保险 银行 贷款 利率 投资 股票 基金 风险 收益 "
    "企业 生产 制造 质量 标准 检验 材料 设备 机器 工厂 工程 建筑 施工 设施 能源 电力 石油 煤炭 环境 污染 "
    "保护 资源 水利 农业 粮食 种植 土地 农民 城市 交通 道路 车辆 铁路 机场 航空 船舶 运输 物流 仓库 包装 "
    "文化 历史 艺术 音乐 电影 文学 小说 诗歌 作者 读者 出版 新闻 记者 媒体 广告 宣传 活动 会议 报告 计划 "
    "目标 任务 进度 成本 预算 资金 财务 会计 税收 审计 监督 评估 考核 绩效 奖励 处罚 申请 审批 批准 通知 "
    "提高 降低 增加 减少 扩大 缩小 改善 优化 加强 推动 促进 支持 帮助 影响 决定 选择 比较 区别 关系 联系 "
    "重要 主要 基本 一般 特殊 普通 简单 复杂 困难 容易 快速 稳定 可靠 有效 合理 正确 完整 详细 具体 明确 "
    "首先 其次 最后 目前 现在 过去 未来 今天 明天 昨天 每年 每月 每天 开始 结束 继续 停止 完成 实现 达到 "
    "北京 上海 广州 深圳 杭州 南京 成都 武汉 西安 中国 世界 国际 地区 中心 机构 专家 代表 成员 领导 同事"
)
_SURNAMES = "王李张刘陈杨黄赵吴周徐孙马朱胡郭何高林罗郑梁谢宋唐许韩冯邓曹彭曾肖田董袁潘于蒋蔡余杜叶程苏魏吕丁"
_GIVEN = (
    "伟芳娜秀敏静丽强磊军洋勇艳杰娟涛明超兰霞平刚桂文辉玲华红建国志海玉英梅春燕林宁波雪飞云龙虎凤鹏宇浩然轩梓涵欣怡"
)
_TAIL = {"en": 20_000, "zh": 6_000}
_EXPONENT = 1.05
_SENTENCE = (8, 20)
_PARAGRAPH = 5


class Corpus:
    """Generates texts by language and number: the same pair always gives the same text."""

    def __init__(self, seed: int = 1) -> None:
        self._seed = seed
        rng = np.random.default_rng(seed)
        self._words = {
            "en": np.array(list(dict.fromkeys([*_ENGLISH_COMMON.split(), *_invented(rng, _TAIL["en"])]))),
            "zh": np.array(list(dict.fromkeys([*_CHINESE_COMMON.split(), *_names(rng, _TAIL["zh"])]))),
        }
        self._shares = {language: _zipf(len(words)) for language, words in self._words.items()}

    def text(self, language: Language, size: int, number: int) -> str:
        """A text of about `size` bytes (UTF-8)."""
        rng = np.random.default_rng([self._seed, number, len(language), ord(language[0])])
        parts: list[str] = []
        length = 0
        for at, sentence in enumerate(self._sentences(language, rng), start=1):
            end = "\n\n" if at % _PARAGRAPH == 0 else "" if language == "zh" else " "
            parts.append(sentence + end)
            length += len(parts[-1]) * (3 if language == "zh" else 1)
            if length >= size:
                break
        return "".join(parts)

    def mixed(self, size: int, number: int) -> str:
        """A text whose first half is English and whose second half is Chinese, by bytes."""
        return self.text("en", size // 2, number) + "\n\n" + self.text("zh", size // 2, number)

    def queries(self, count: int) -> list[str]:
        """Different questions of 3 to 8 words, the languages taking turns."""
        rng = np.random.default_rng([self._seed, 99])
        found: dict[str, None] = {}
        while len(found) < count:
            language: Language = "zh" if len(found) % 2 else "en"
            words = self._draw(language, rng, int(rng.integers(3, 9)))
            found["".join(words) if language == "zh" else " ".join(words)] = None
        return list(found)

    def _sentences(self, language: Language, rng: np.random.Generator) -> Iterator[str]:
        while True:
            lengths = rng.integers(_SENTENCE[0], _SENTENCE[1] + 1, size=500)
            words = self._draw(language, rng, int(lengths.sum()))
            at = 0
            for length in lengths:
                some = words[at : at + length]
                at += length
                yield "".join(some) + "。" if language == "zh" else " ".join(some).capitalize() + "."

    def _draw(self, language: Language, rng: np.random.Generator, count: int) -> list[str]:
        places = np.searchsorted(self._shares[language], rng.random(count))
        return list(self._words[language][places])


def _zipf(count: int) -> NDArray[np.float64]:
    """Cumulative shares of words by rank."""
    shares = np.arange(1, count + 1, dtype=np.float64) ** -_EXPONENT
    cumulated = np.cumsum(shares / shares.sum())
    cumulated[-1] = 1.0
    return cumulated


def _invented(rng: np.random.Generator, count: int) -> list[str]:
    syllables = np.array(_SYLLABLES.split())
    return ["".join(rng.choice(syllables, size=rng.integers(2, 5))) for _ in range(count)]


def _names(rng: np.random.Generator, count: int) -> list[str]:
    surnames, given = np.array(list(_SURNAMES)), np.array(list(_GIVEN))
    return [str(rng.choice(surnames)) + "".join(rng.choice(given, size=rng.integers(1, 3))) for _ in range(count)]
