"""Closed classes of words that tell names from other words, and kinds of names from each other."""

from __future__ import annotations


def words_of(text: str) -> frozenset[str]:
    """The words of a list that is written with spaces."""
    return frozenset(text.split())


FUNCTION_WORDS = words_of(
    "a about above according across actually after afterwards again against ago all almost alone along already also "
    "although always am amid among amongst an and another any anybody anyone anything anywhere apart are around as "
    "aside at away back because been before behind being below beneath beside besides best better between beyond both "
    "but by can cannot certain certainly clearly come could dear despite did do does done down due during each "
    "earlier early eight eighth either eleven else enough especially even eventually ever every everybody everyone "
    "everything everywhere except far few fewer fifth finally first five following for former formerly four fourth "
    "from further furthermore generally given had half hardly has have having he hence her here hers herself him "
    "himself his how however i if in indeed initially inside instead into is it its itself just last late later "
    "latter least less let like likewise little many may maybe me meanwhile might mine more moreover most mostly "
    "much must my myself near nearby nearly neither never nevertheless next nine no nobody none nonetheless nor not "
    "nothing notably now nowhere of off often oh on once one only onto or originally other others otherwise our ours "
    "ourselves out outside over own part particularly per perhaps please possibly previously probably quite rather "
    "really recently regardless same second several seven shall she should similarly since six so some somebody "
    "someone something sometimes somewhere soon still subsequently such ten than thank thanks that the their theirs "
    "them themselves then there thereafter therefore these they thing things third this those though three through "
    "throughout thus till to today together tomorrow too toward towards twelve twenty two typically under "
    "underneath unless unlike until up upon us used usually various very via was we well were what whatever when "
    "whenever where whereas wherever whether which whichever while who whoever whole whom whose why will with "
    "within without would yes yesterday yet you your yours yourself"
)
"""Words that are no name and no topic, also when they open a sentence."""

OPENERS = FUNCTION_WORDS | words_of(
    "ah alas am answer based both bring build call check choose click consider copy create currently delete edit "
    "enter example figure find follow get go good great hello hey how i'd i'll i'm i've include it's keep know look "
    "make mind new news none note old open people poor press read remove return run say see select set shown simply "
    "start step table take tell that's there's think try turn use view wait what's when whilst why work write yours "
    "sir madam ladies gentlemen chapter section part volume page book stave illustration god heaven"
)
"""Words that open a sentence, a line or a speech in capitals and are no name by themselves."""

VERBS = words_of(
    "is are was were be been am has had have do does did became become becomes began begin begins bring brings "
    "brought build built buy bought came chose come comes drew fell felt fought found gave get gets give gives goes "
    "got grew held hold holds keep keeps kept knew know known knows laid lay leave leaves led left let lie lies lost "
    "made make makes mean means meant meet met paid put puts ran read run runs said sang sat saw say says see seen "
    "sees send sent shot show shown shows sold speak spent spoke stand stood take takes taken taught tell tells "
    "think thinks thought told took turn turns went win wins won wore write writes written wrote yield told "
    "contain contains include includes provide provides allow allows require requires need needs want wants help "
    "helps follow follows remain remains seem seems appear appears consist consists belong belongs play plays call "
    "calls cause causes serve serves offer offers support supports use uses lives live work works stars star "
    "describes depicts features opposes owns runs operates governs represents expect ask asks look looks go try set "
    "understand born"
)
"""Common verbs that their endings do not show."""

NOT_VERBS = words_of(
    "king ring spring string thing wing evening morning building ceiling wedding meeting painting recording "
    "engineering marketing manufacturing learning processing computing programming training housing banking "
    "clothing drawing writing feeling hearing being sibling offspring setting string seed speed need bed shed red "
    "hundred breed weed feed embed wing embedding testing spelling reading shipping"
)
"""Nouns that end like verbs."""

PLAIN_NOUNS = words_of(
    "way ways lot lots kind kinds sort sorts number numbers part parts case cases fact facts year years day days "
    "month months week weeks hour hours minute minutes moment time times night man men woman women people person "
    "name names word words end side place hand hands head eye eyes face point bit example addition order result "
    "reason others use order form type types amount rest front top bottom middle start beginning set series variety "
    "range majority group groups new old good great large small big long short high low young different important "
    "able available possible early major main many other such own full real true right left sure own same several "
    "door room house voice matter something anything nothing century decade"
)
"""Words that say too little to be a topic alone."""

ROLES = words_of(
    "Mr Mister Dr Doctor Prof Professor President Senator Sen Gov Governor Rep Chancellor Premier Minister "
    "Chairman Chairwoman Congressman Director"
)
"""Words before a person's name that are left out of it."""

HONORIFICS = words_of(
    "Mrs Ms Miss Sir Lady Lord King Queen Prince Princess Pope Saint Captain Colonel Uncle Aunt Emperor"
)

CALENDAR = words_of(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April May June July August "
    "September October November December"
)

DEMONYMS = words_of(
    "African American Arab Arabic Argentine Argentinian Asian Australian Austrian Bavarian Belgian Brazilian British "
    "Bulgarian Canadian Catalan Chilean Chinese Christian Colombian Croatian Cuban Czech Danish Dutch Egyptian "
    "English European Finnish Flemish French German Greek Hungarian Icelandic Indian Indonesian Iranian Iraqi Irish "
    "Islamic Israeli Italian Japanese Jewish Kenyan Korean Latin Lebanese Malaysian Mexican Moroccan Muslim Nigerian "
    "Norwegian Pakistani Palestinian Persian Peruvian Philippine Polish Portuguese Roman Romanian Russian Scottish "
    "Serbian Soviet Spanish Swedish Swiss Syrian Thai Turkish Ukrainian Vietnamese Welsh Western Eastern"
)
"""Adjectives of origin: alone they describe something else that is the topic."""

GIVEN_NAMES = words_of(
    "Adam Alan Albert Alex Alexander Alfred Alice Amy Andrea Andrew Angela Anna Anne Anthony Arthur Barbara Ben "
    "Benjamin Bernard Bill Bob Brian Bruce Carl Carlos Caroline Catherine Charles Charlotte Chris Christina "
    "Christine Christopher Daniel David Deborah Dennis Diana Donald Dorothy Douglas Edgar Edward Elizabeth Emily "
    "Emma Eric Ernest Eva Francis Frank Franz Fred Frederick Gary George Gerald Grace Hannah Hans Harold Harry Helen "
    "Henry Herbert Howard Hugh Ian Isaac Jack Jacob James Jane Janet Jason Jean Jeff Jennifer Jerry Jessica Jim Joan "
    "Joe Johann John Jonathan Jose Joseph Joshua Juan Judith Julia Karen Karl Kate Keith Kenneth Kevin Larry Laura "
    "Lawrence Leo Leonard Lewis Linda Louis Lucy Luis Margaret Maria Marie Mark Martha Martin Mary Matthew Michael "
    "Michelle Mike Nancy Nicholas Oliver Oscar Otto Patricia Patrick Paul Paula Peter Philip Phillip Rachel Ralph "
    "Raymond Rebecca Richard Robert Roger Ronald Roy Ruth Ryan Samuel Sandra Sara Sarah Scott Sean Simon Sophia "
    "Stephen Steve Steven Stewart Susan Theodore Thomas Tim Timothy Tom Tony Victor Victoria Vincent Walter Wilhelm "
    "William"
)

KINDS = {
    "organization": words_of(
        "Academy Agency Airlines Alliance Army Assembly Association Authority Bank Board Bros Bureau Cabinet "
        "Church Club "
        "College Commission Committee Communications Company Comics Conference Congress Consortium Corp Corporation "
        "Council Court Department Entertainment Federation Films Force Forces Foundation Group Guild Holdings Hospital "
        "Inc Industries Institute Institution Laboratories Laboratory League Limited Llc Ltd Ministry Motors Museum "
        "Navy Office Orchestra Organisation Organization Parliament Party Pictures Police Press Productions "
        "Publications Publishers Publishing Records School Seminary Senate Services Society Studios Systems "
        "Technologies Television Theatre Union Unit University"
    ),
    "location": words_of(
        "Airport Alley Avenue Basin Bay Beach Borough Bridge Canal Canyon Cape Castle Cathedral Cemetery City Coast "
        "County Creek Desert District Falls Forest Garden Gardens Glacier Gulf Harbor Harbour Heights Hill "
        "Hills Island "
        "Islands Isle Kingdom Lake Mount Mountain Mountains Ocean Palace Park Peninsula Plain Plateau Port Province "
        "Region Republic River Road Sea Square Station Strait Street Territory Town Valley Village"
    ),
    "event": words_of(
        "Affair Armistice Battle Campaign Championship Championships Conference Conspiracy Crisis Cup Election "
        "Elections Exhibition Exposition Festival Games Marathon Massacre Mission Olympics Open Rebellion Revolution "
        "Siege Summit Tournament Treaty Uprising War Wars"
    ),
    "title": words_of("Award Awards Medal Prize Journal Gazette Herald Times"),
}
"""Words inside a name that tell its kind, most often the last or, before "of", the first."""

COUNTRIES = words_of(
    "Afghanistan Africa Albania Algeria America Angola Antarctica Argentina Armenia Asia Australia Austria Azerbaijan "
    "Bangladesh Belarus Belgium Bolivia Bosnia Botswana Brazil Britain Bulgaria Burma Cambodia Cameroon Canada Chad "
    "Chile China Colombia Congo Croatia Cuba Cyprus Denmark Ecuador Egypt England Eritrea Estonia Ethiopia Europe "
    "Finland France Gabon Georgia Germany Ghana Greece Greenland Guatemala Guinea Haiti Honduras Hungary Iceland India "
    "Indonesia Iran Iraq Ireland Israel Italy Jamaica Japan Jordan Kazakhstan Kenya Korea Kosovo Kuwait Laos Latvia "
    "Lebanon Liberia Libya Lithuania Luxembourg Madagascar Malawi Malaysia Mali Malta Mexico Moldova Mongolia "
    "Montenegro Morocco Mozambique Myanmar Namibia Nepal Netherlands Nicaragua Niger Nigeria Norway Oman Pakistan "
    "Palestine Panama Paraguay Peru Philippines Poland Portugal Qatar Romania Russia Rwanda Scotland Senegal Serbia "
    "Singapore Slovakia Slovenia Somalia Spain Sudan Sweden Switzerland Syria Taiwan Tanzania Thailand Tunisia Turkey "
    "Uganda Ukraine Uruguay Uzbekistan Venezuela Vietnam Wales Yemen Yugoslavia Zambia Zimbabwe London Paris Berlin "
    "Rome Madrid Vienna Moscow Beijing Shanghai Tokyo Washington Chicago California Texas Florida"
)

SURNAMES = frozenset(
    "王李张刘陈杨黄赵吴周徐孙马朱胡郭何高林罗郑梁谢宋唐许韩冯邓曹彭曾肖田董袁潘于蒋蔡余杜叶程苏魏吕丁任沈姚卢"
    "姜崔钟谭陆汪范金石廖贾夏韦付方白邹孟熊秦邱江尹薛闫段雷侯龙史陶黎贺顾毛郝龚邵万钱严覃武戴莫孔汤华典荀糜"
    "康左纪关庞甘颜文祖穆温葛俞岳齐伍庄樊兰殷施洪翁安倪鲁柳毕聂焦向凌霍宗褚貂张蒯阚沮逄麹皇"
)
COMPOUND_SURNAMES = (
    "诸葛",
    "司马",
    "夏侯",
    "欧阳",
    "上官",
    "皇甫",
    "公孙",
    "尉迟",
    "长孙",
    "慕容",
    "令狐",
    "太史",
    "淳于",
    "端木",
)

NAME_HEADS = frozenset("与和及跟同对向于在从被把将使令让叫问见闻望请派遣命召唤杀斩降扶汝吾我你他她此其这那是之")
"""Characters that a guess at a name takes in at its beginning."""

NAME_TAILS = frozenset(
    "曰道说笑问答大见引叹视亦入再正惊遂为急便回只先请领之谓唤令命使遣及与和将自又即乃已皆至于从在因以不有了着的是"
    "也都就被把称引造排本率领追攻降投奔斩杀败走战向对到上下里中后前时等去来出听看想要会能可二三两若既则且故其此何谁怒喜哭骂"
)
"""Characters that a guess at a name takes in at its end."""

CHINESE_KINDS = {
    "organization": words_of(
        "公司 集团 大学 学院 中学 小学 学校 研究所 研究院 科学院 设计院 医院 银行 法院 检察院 委员会 协会 "
        "学会 基金会 "
        "出版社 杂志社 报社 通讯社 电视台 电台 博物馆 图书馆 俱乐部 乐团 乐队 剧团 政府 国务院 议会 国会 "
        "党 军 部队 "
        "联盟 联合会 组织 工会 事务所 工厂 局 厅 署 实验室 中心 机构"
    ),
    "location": words_of(
        "省 市 县 区 镇 乡 村 州 郡 国 城 山 山脉 河 江 湖 海 洋 岛 群岛 半岛 峡 峡谷 谷 关 坡 亭 岭 峰 "
        "高原 平原 盆地 "
        "沙漠 草原 路 街 大道 桥 港 机场 车站 火车站 站 寺 庙 宫 塔 公园 广场 共和国 王国 帝国 地区 自治区 海峡"
    ),
    "event": words_of(
        "战争 之战 战役 会战 起义 革命 运动 事变 事件 会议 大会 峰会 论坛 世界杯 奥运会 运动会 锦标赛 联赛 "
        "杯 节 电影节 "
        "博览会 展览会 条约 选举 政变"
    ),
    "title": words_of("奖 法 条例 宪法 日报 时报 周刊 杂志"),
}
"""Ends of names that tell their kind."""

CHINESE_PLAIN = words_of(
    "时候 时间 时期 时代 问题 情况 方面 方式 方法 过程 部分 内容 结果 原因 条件 作用 关系 意义 程度 水平 地方 "
    "地位 东西 "
    "事情 事件 人员 人们 人物 个人 大家 自己 别人 众人 二人 一人 三人 两人 世界 生活 工作 活动 名字 名称 方向 "
    "目标 目的 "
    "基础 影响 特点 特征 性质 形式 类型 种类 数量 部门 单位 成员 对象 状态 现象 现在 当时 后来 以后 以前 今天 "
    "昨天 明天 "
    "今年 去年 明年 年代 世纪 期间 同时 之后 之前 附近 左右 全部 其他 其中 主要 重要 一般 不同 相同 例子 示例 "
    "步骤 下文 "
    "上马 莫非 令人 使人 差人 人报 之士 之兵 之意 之心 之众 之策 方可 大喜 大怒 大惊 大败 大乱 大事 明白 高明 "
    "安抚 冷笑 "
    "何足 何谓 闻言 传令 领命 诗赞 文武 万幸 太甚 容某 英雄 英文 中文 日语 所有 全国 各国 国内 国外 我国 本国 "
    "无人 众视 正遇 "
    "于是 因此 可能 需要 进行 方案 一种 一些 许多 大量 多数 少数 人数 总数 平方公里 公里 小时 分钟 如下 以下 以上"
)
"""Words with a noun's tag that say too little, or that are mistagged."""
