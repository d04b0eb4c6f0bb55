"""Text of a turn -> the marker in it by which the policy imitates another speaker, or leaves its reasoning open."""

import re
import unicodedata
from collections.abc import Iterable

_TOKEN = re.compile(
    r"<\|[\w-]{1,40}\|>|<\uff5c[^\uff5c<>\s]{1,40}\uff5c>|<(?:start|end)_of_turn>|<(?:bos|eos)>|<</?SYS>>"
    r"|\[/?(?:INST|THINK|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS)\]"
)
"""Markers of chat templates that have no other meaning."""
_WRITTEN_TOKEN = re.compile(rf"{_TOKEN.pattern}|</?s>")
_TAG = re.compile(r"<\s*(?:(/)\s*)?([a-z][\w:.-]{0,40})(?:[ ]+([a-z]{1,12}))?(?=[\s/>])")
_NO_LETTERS = re.compile(r"[\W_]+")
_RESULT = "(?:results?|outputs?|responses?|returns?|repl(?:y|ies)|feedback|observations?)"
_RESULT_TAG = re.compile(
    rf"(?:tool|toolcall|function|functioncall|api|execution|command|environment|env|code|search){_RESULT}"
    r"|observations?|obs|interpreter|information|systemreminder|(?:user|human|system|tool)(?:message|query|input)"
)
_RESULT_NAME = (
    r"[\w:.-]{0,40}?(?:result|output|respons|observation|feedback|repl(?:y|ies)|return|stdout|stderr|terminal)"
)
"""Name such as `refund_result`, up to the word in it that means a result."""
_BARE_RESULT = re.compile(
    rf"(?:(?<!\w)<|<(?=\s*/))\s*(?:/\s*)?{_RESULT_NAME}[\w:.-]{{0,40}}(?=[\s/>])"
    rf"|^[^\w\n]{{0,8}}(?:```|~~~) *{_RESULT_NAME}[^\n]*"
    r"|[\"'](?:tool|function|api|call)[\w -]{0,12}(?:result|output|respons|observation)\w{0,2}[\"']\s*:"
    r"|[\"']role[\"']\s*:\s*[\"'](?:tool|user|human|system|function)[\"']",
    re.MULTILINE,
)
"""Tags, code blocks and JSON that may hold a result. They count only before a call, since an answer may hold them too.
A type such as `Promise<Response>` does not match."""
_ROLE_TAG = re.compile(r"user|human|system|assistant|tool|environment")
_REASONING_TAG = re.compile(
    r"\w*think(?:ing)?(?:process)?|thoughts?|(?:inner|internal|hidden)(?:thoughts?|monologue|reasoning)|reasoning"
    r"|reflections?|scratchpad|monologue|analysis|cot|chainofthoughts?|rationale|deliberation|s"
)
"""Tags that must be closed; `</s>` alone is the end of the text in some templates."""

_OWN_LABEL = re.compile(r"^[^\w\n]{0,8}(?:action|action input|assistant|ai|行动|动作|助手)[^\w\n:]{0,4}:", re.MULTILINE)
_LINE_BEGINS = re.compile(r"(?:^|[\n\r\v\f\x85\u2028\u2029])(?P<dress>(?:[^\w\n\r\"'`]|_){0,16})$")
_BULLET = re.compile(r"\s*[-*+\u2022\u2023\u2013]\s")
_SENTENCE_ENDS = re.compile(r"[^\W\d][\"')\]]?[.!?\u2026\u3002][\"')\]]?\s+[*_#]{0,3}$")
_WORD_ENDS = re.compile(r"[^\w\"'`\u201c\u2018\u00ab-]$")
_LABEL_ENDS = re.compile(
    r" (?:of|for|from|by) [^\n:]{1,40}:|[\]}>)\u00bb\u3011]"
    r"|(?:[^\S\n]|[*_#\d()\]}>\u00bb\u3011-]){0,8}(?:[:=|\u2192\u21d2\u2013\u2014]|->|=>|(?=[\n\r])|$)"
)
_COLON = re.compile(r"[^\S\n]?[*_]{0,3}[^\S\n]?:")
_WINDOW = 24
"""Number of characters before a label that are examined."""

_INVISIBLE = re.compile(
    # Combining marks, and characters that only change how others are shown.
    r"[\u00ad\u0300-\u036f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3099\u309a\ufe00-\ufe0f\ufeff]"
)
LOOK_ALIKES = str.maketrans(
    "авекмнорстухіѕјһАВЕКМНОРСТУХІЅЈοανρτυΟΑΒΕΗΙΚΜΝΡΤΥΧıłø◁▷⟨⟩〈〉《》",
    "abekmhopctyxisjhABEKMHOPCTYXISJoavptuOABEHIKMNPTYXilo<><><><>",
)
"""Letters of Cyrillic and Greek that look like Latin ones, and brackets that stand for < and >."""


def without_chat_tokens(text: str) -> str:
    """The text with a space inside each marker of a chat template, so that no server reads it as a special token."""
    return _WRITTEN_TOKEN.sub(lambda found: f"{found[0][:1]} {found[0][1:]}", text)


def _folded(text: str) -> str:
    """The text without combining and invisible marks, with look-alikes and width variants as plain letters."""
    if text.isascii():
        return text
    return _INVISIBLE.sub("", unicodedata.normalize("NFKD", text)).translate(LOOK_ALIKES)


def _folded_words(words: str) -> list[str]:
    return [_folded(word).lower() for word in words.split(", ")]


_RESULT_WORDS = _folded_words(
    "observation, observación, observação, osservazione, observatie, beobachtung, obserwacja, gözlem, "
    "наблюдение, спостереження, 观察, 观察结果, 观测, 观测结果, 觀察, 觀察結果, 観察, 観察結果, 관찰, 관찰 결과, "
    "quan sát, अवलोकन, 工具结果, 工具输出, 工具返回, 工具响应, 执行结果, 调用结果, 函数结果, 返回结果, ツール結果, "
    "obs, stdout, stderr, return value, returned value, "
    "ツールの結果, 도구 결과, werkzeugergebnis, resultado de la herramienta, résultat de l'outil"
) + [
    f"{source}{blank}{result}"
    for source in ("tool", "tool call", "function", "function call", "api", "execution", "environment", "command")
    for blank in (" ", "_", "-", "")
    for result in ("result", "results", "output", "outputs", "response", "return", "observation")
]
_ROLE_WORDS = _folded_words(
    "human, user, system, assistant, tool, instruction, benutzer, nutzer, utilisateur, usuario, usuário, utente, "
    "gebruiker, użytkownik, kullanıcı, người dùng, пользователь, користувач, система, 用户, 用戶, 人类, 人類, "  # noqa: RUF001
    "系统, 系統, 助手, ユーザー, 人間, 사용자, المستخدم, उपयोगकर्ता"
)


def forged_marker(text: str, *, before_call: bool) -> str | None:
    """The first marker by which the policy imitates the template, a tool or the user; None if there is none.

    Tokens and tags of chat templates, tags of results, and tags of reasoning that are not closed count everywhere.
    Labels such as "Observation:" or "User:" count before a call, whose result they forge. Without a call they count
    only beside a label of the assistant's next turn, since an answer may quote a dialogue or an observation.

    Args:
        text: Text of a turn outside of its thinking and its calls.
        before_call: Whether calls follow the text.
    """
    if token := _TOKEN.search(text):
        return token[0]
    folded = _folded(text)
    lowered = folded.lower()
    if token := _TOKEN.search(folded):
        return token[0]
    if "<" in lowered and (tag := _forged_tag(lowered)):
        return tag
    if before_call and (bare := _BARE_RESULT.search(lowered)):
        return bare[0]
    if before_call or _OWN_LABEL.search(lowered):
        return _label(folded, lowered, _RESULT_WORDS, is_role=False) or _label(
            folded, lowered, _ROLE_WORDS, is_role=True
        )
    return None


def _forged_tag(lowered: str) -> str | None:
    """The first tag around a result or around a message of another speaker, or of reasoning that is not closed."""
    is_open = ""
    for tag in _TAG.finditer(lowered):
        is_closing, names = tag[1] == "/", _names(tag)
        if "think" in names or any(map(_RESULT_TAG.fullmatch, names)):
            return tag[0]
        if _ROLE_TAG.fullmatch(names[0]) and (is_closing or _dress(lowered, tag.start()) is not None):
            return tag[0]
        if _REASONING_TAG.fullmatch(names[0]):
            if is_closing != (is_open == names[0]) or (is_open and not is_closing):
                return tag[0]
            is_open = "" if is_closing else names[0]
    return f"<{is_open}> without its end" if is_open else None


def _names(tag: re.Match[str]) -> list[str]:
    """Names that a tag may have: its first word without the namespace, and its first two words joined."""
    first = _NO_LETTERS.sub("", tag[2].rpartition(":")[2])
    return [first, first + tag[3]] if tag[3] else [first]


def _label(folded: str, lowered: str, words: Iterable[str], *, is_role: bool) -> str | None:
    """The first of the words that stands in the text as the label of another speaker's turn."""
    for word in words:
        start = lowered.find(word)
        while start >= 0:
            end = start + len(word)
            if _LABEL_ENDS.match(lowered, end) and _is_label(folded, start, end, is_role=is_role):
                return folded[start:end]
            start = lowered.find(word, end)
    return None


def _is_label(folded: str, start: int, end: int, *, is_role: bool) -> bool:
    """Whether a word that looks like a label stands at the beginning of a line, or with a capital within one."""
    dress = _dress(folded, start)
    if dress is not None:
        return not (is_role and _BULLET.match(dress))
    if not _COLON.match(folded, end) or folded[start].islower():
        return False
    before = folded[max(0, start - _WINDOW) : start]
    return (_SENTENCE_ENDS if is_role else _WORD_ENDS).search(before) is not None


def _dress(text: str, position: int) -> str | None:
    """Blanks and punctuation between the beginning of the line and a position; None if letters or quotes are there."""
    before = text[max(0, position - _WINDOW) : position]
    line = _LINE_BEGINS.search(before if position > _WINDOW else f"\n{before}")
    return line and line["dress"]
