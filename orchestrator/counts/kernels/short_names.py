"""Kernel names for people: shortened from the middle, so that tile, type, functor and what tells
them apart stay.

Names are shortened as a set: two kernels of a page never have the same short name. nsys and Kineto
write ``{lambda(float)#1}`` and ``(anonymous namespace)``, ncu writes
``[lambda(float) (instance 1)]``, ``<unnamed>`` and ``(int)4``: two spellings of one kernel have one
short name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

from perfctl.orchestrator.counts.kernels.names import LONGEST_NAME
from perfctl.orchestrator.statistics import group_by

_Nth = tuple[str, int]
"""A token, and how often it stood before in its name."""
LONGEST = 72
"""Characters of a short name."""
GAP = "…"
_OPENS = ("<", "{", "(")
_ROUNDS = 3
_MOST_TOKENS = 500
_LITERAL = re.compile(r"\(\w+(?:(?:::| )\w+)*\)(?=-?\d)")
_NOISE = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|\bunnamed>::|\b_GLOBAL__N__\w+?::|_INTERNAL_\w+?::|"
    r"::?operator ?\(\) ?\(\)(?: ?const)?|\bconst\b|\btypename\b|\[clone [^\]]*\]"
)
_NCU_LAMBDA = re.compile(r"[\[{]lambda\(([^()]*)\) \(instance (\d+)\)[\]}]?")
_LAMBDA = re.compile(r"\{lambda\(([^()]*)\)#(\d+)\}")
_ARGUMENTS = re.compile(r"\([^()]*\)")
_CALL = re.compile(r"&\(([\w:]+)\([^()]*\)\)")
_QUALIFIER = re.compile(r"\b(?:\w+::)+(?=[\w~])")
_OUTER = re.compile(r"\b(?:std|at|c10|native|detail|cuda|cutlass)::|\b(?:\w+::)+(?=\w+::[\w~])")
"""Qualifiers of a name, without its innermost namespace; those of libraries differ by version."""
_WRAPPED = re.compile(r"\bgpu_kernel_impl(?:_nocast)?<(.*)>(?:::)?\{int#\d+\}")
_ARRAY = re.compile(r", ?[Aa]rray<char\*, ?\d+>(?:::StoreWithoutCast)?")
_WORD, _TOKEN = re.compile(r"\w+|\W"), re.compile(r"[A-Za-z0-9]+|_")
_CAMEL = re.compile(r"[A-Z]*[a-z]+|[A-Z]+|\d+(?:x\d+)*")
_WHOLE = 40
"""Characters of an identifier among template arguments that is kept or left out as a whole."""
_TILE = re.compile(r"\d+x\d+|^MT\d")
_TYPE = re.compile(
    "^(?:float|double|half|Half|bool|int|long|char|BFloat16|bfloat16|bf16|fp16|fp8|f16|f32|f64|"
    "fp32|tf32|s8|u8|i8|e4m3|e5m2"
    r"|BBS|HHS|(?:[fsd]|bf|tf)\d+(?:f\d+)*|[shd]gemm)$"
)
_FUNCTOR = re.compile(r"[Ff]unctor|Ops?$|kernel|impl|cuda|Agent|Cuda|CUDA|lambda")
_SOURCE_NAME = re.compile(r"(\d+)(?=[A-Za-z_])|L[a-z]n?(\d+)E")


def shorten_kernel_names_uniquely(
    names: Iterable[str], max_characters: int = LONGEST
) -> dict[str, str]:
    """Name -> what to show of it: at most ``max_characters`` characters, and never the same for
    kernels that differ.

    Return type, parameters, namespaces and casts are left out; then the least telling parts of what
    is still too long.
    """
    plain = _build_plain_names_with_overloads(list(dict.fromkeys(names)))
    texts = sorted(set(plain.values()))  # whatever order the kernels ran in
    brief = {text: drop_functor_boilerplate(text) for text in texts}
    short_by_name = {
        text: _keep_distinguishing_tokens(brief[text], weights, max_characters)
        for text, weights in _weigh_distinct_tokens_by_function(brief).items()
    }
    for step in range(_ROUNDS):
        if not (same := _group_texts_by_short_name(short_by_name)):
            break
        for group in same:
            sources = {text: text if step else brief[text] for text in group}
            for text, extra in _find_tokens_not_common(sources).items():
                short_by_name[text] = _keep_distinguishing_tokens(
                    sources[text], extra, max_characters
                )
    for group in _group_texts_by_short_name(short_by_name):
        for number, text in enumerate(sorted(group), 1):
            tail = f" #{number}"
            short_by_name[text] = short_by_name[text][: max_characters - len(tail)] + tail
    return {name: short_by_name[text] for name, text in plain.items()}


def shorten_kernel_name(name: str) -> str:
    """One name for a sentence."""
    return shorten_kernel_names_uniquely([name])[name]


def drop_functor_boilerplate(text: str) -> str:
    """A plain name without what its functor says again: the dispatch over types, wrappers, the
    number of tensors."""
    text = _ARRAY.sub("", _WRAPPED.sub(r"\1", text))
    text = re.sub(r"(?:::)?\{#\d+\}", "", text)
    return re.sub(r"(?:::)?\{([^{}#]*)#\d+\}", r"{\1}", text)


def _build_plain_names_with_overloads(names: Sequence[str]) -> dict[str, str]:
    """Plain names; with innermost namespaces or parameters where kernels differ in nothing else."""
    parts = {
        name: _split_plain_name_and_parameters(_truncate_name_with_checksum(name)) for name in names
    }
    for same in group_by(names, lambda name: parts[name][0]).values():
        if len(same) > 1 and "<" in parts[same[0]][0]:
            qualified = {
                name: _split_plain_name_and_parameters(_truncate_name_with_checksum(name), _OUTER)
                for name in same
            }
            if len({text for text, _ in qualified.values()}) > 1:
                parts.update(qualified)
    overloads: dict[str, set[str]] = defaultdict(set)
    for text, parameters in parts.values():
        # ncu and nsys write a parameter whose type is deduced as T1
        if not re.search(r"\bT\d+\b", parameters):
            overloads[text].add(parameters.replace(" ", ""))
    several = {
        text for text, sources_ in overloads.items() if len(sources_) > 1 and "<" not in text
    }
    return {
        name: f"{text}({parameters})" if text in several and parameters else text
        for name, (text, parameters) in parts.items()
    }


def _truncate_name_with_checksum(name: str) -> str:
    """Return a name of at most LONGEST_NAME characters; different names stay different."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}#{crc32(name.encode('utf-8', 'replace')):x}"


def _split_plain_name_and_parameters(
    name: str, qualifier: re.Pattern[str] = _QUALIFIER
) -> tuple[str, str]:
    """(plain name, parameters)."""
    if name.startswith("_Z"):
        return _extract_mangled_names(name), ""
    text = _NCU_LAMBDA.sub(r"{lambda(\1)#\2}", name)
    text = text.replace("(bool)0", "false").replace("(bool)1", "true")
    text = _NOISE.sub(
        "", _LITERAL.sub("", text.replace("(anonymous namespace)::", "").replace("<unnamed>::", ""))
    )
    text = re.sub(r"\b(\d+)(?:ul|u|l)\b", r"\1", text)
    # std::array since PyTorch 2.5, at::detail::Array before
    text = re.sub(r"\barray<char", "Array<char", text)
    text = _CALL.sub(r"\1", _LAMBDA.sub(r"{\1#\2}", text))
    head, parameters = _split_head_and_parameters(text)
    before = None
    while before != head:
        before, head = head, _ARGUMENTS.sub("", head)
    if "<" in head or parameters:
        head = head[_find_function_name_start(head) :]
    head = qualifier.sub("", head.removeprefix("void ").replace("void ", ""))
    head = re.sub(r"\s*([<>{}*&,()])\s*", r"\1", head).replace(",", ", ").strip()
    return head or name, " ".join(_QUALIFIER.sub("", parameters).split())


def _split_head_and_parameters(text: str) -> tuple[str, str]:
    """Head and parameters of a function: cut at the first bracket outside of template arguments."""
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter in "<{") - (letter in ">}" and text[index - 1 : index] != "-")
        if letter == "(" and depth <= 0 and index:
            return text[:index], text[index + 1 :].rpartition(")")[0]
    return text, ""


def _find_function_name_start(head: str) -> int:
    """Where the function's name begins: after the last blank outside of template arguments."""
    depth, position = 0, 0
    for index, letter in enumerate(head.rstrip()):
        depth += (letter in "<{") - (letter in ">}")
        if letter == " " and depth <= 0:
            position = index + 1
    return position


def _extract_mangled_names(name: str) -> str:
    """The names and numbers of a mangled name (Itanium C++ ABI, 5.1), without demangling
    the rest."""
    parts, position, kernel = [], 2, 0
    while match := _SOURCE_NAME.search(name, position):
        if match[2]:
            parts.append(match[2])
            position = match.end()
            continue
        length, start = int(match[1]), match.end()
        if start + length > len(name):
            break
        identifier = name[start : start + length]
        position = start + length
        if not identifier.startswith(("_GLOBAL__", "_INTERNAL_")) and identifier not in (
            "at",
            "native",
        ):
            if not kernel and name[position : position + 1] == "I":
                kernel = len(parts)
            if not re.match(r"_[A-Z0-9]", identifier):
                parts.append(identifier)
    parts = list(dict.fromkeys(parts[kernel:] + parts[:kernel]))
    return f"{parts[0]}<{', '.join(parts[1:])}>" if len(parts) > 1 else parts[0] if parts else name


def _group_texts_by_short_name(short_by_name: Mapping[str, str]) -> list[list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for text, short in short_by_name.items():
        groups[short].append(text)
    return [group for group in groups.values() if len(group) > 1]


def _weigh_distinct_tokens_by_function(brief: Mapping[str, str]) -> dict[str, dict[_Nth, int]]:
    """Text -> its tokens that other kernels of the same function lack, with their extra weight."""
    families: dict[str, list[str]] = defaultdict(list)
    for text, short in brief.items():
        families[re.split(r"[<{_\d]", short, maxsplit=1)[0]].append(text)
    weights: dict[str, dict[_Nth, int]] = {}
    for family in families.values():
        weights |= _find_tokens_not_common({text: brief[text] for text in family}, 3)
    return weights


def _split_tokens(text: str) -> list[str]:
    """Words and what stands between them. The function's own name is split at underscores: tiles
    and types stand in it."""
    tokens, in_name = [], True
    for piece in _WORD.findall(text):
        in_name = in_name and piece not in _OPENS
        if in_name or len(piece) > _WHOLE:
            for token in _TOKEN.findall(piece) or [piece]:
                tokens += [token] if len(token) <= _WHOLE else _CAMEL.findall(token)
        else:
            tokens.append(piece)
    if len(tokens) > _MOST_TOKENS:
        return [*tokens[: _MOST_TOKENS * 4 // 5], *tokens[-_MOST_TOKENS // 5 :]]
    return tokens


def _number_occurrences(tokens: Iterable[str]) -> list[_Nth]:
    """Each token with how often it stood before."""
    occurrences: dict[str, int] = defaultdict(int)
    numbered = []
    for token in tokens:
        numbered.append((token, occurrences[token]))
        occurrences[token] += 1
    return numbered


def _find_tokens_not_common(
    texts: Mapping[str, str], extra_weight: int = 20
) -> dict[str, dict[_Nth, int]]:
    """Text -> tokens that are not in every one of ``texts``."""
    tokens = {
        text: frozenset(_number_occurrences(_split_tokens(source)))
        for text, source in texts.items()
    }
    common = frozenset.intersection(*tokens.values())
    return {
        text: dict.fromkeys(own_tokens - common, extra_weight) if len(texts) > 1 else {}
        for text, own_tokens in tokens.items()
    }


def _keep_distinguishing_tokens(
    text: str, extra_weights: Mapping[_Nth, int], max_characters: int
) -> str:
    """``text`` with its most telling tokens, at most ``max_characters`` characters."""
    if len(text) <= max_characters:
        return text
    tokens = _split_tokens(text)
    weights = _weigh_tokens(tokens, extra_weights)
    if not weights:
        return text[: max_characters - 1] + GAP
    selected: set[int] = {min(weights)}
    failed = 0
    for index_ in sorted(weights, key=lambda index: (-weights[index], index)):
        if index_ in selected:
            continue
        if len(_join_selected_tokens(tokens, selected | {index_})) <= max_characters:
            selected.add(index_)
        elif (failed := failed + 1) > 12:
            break
    return _join_selected_tokens(tokens, selected)[:max_characters]


def _weigh_tokens(tokens: Sequence[str], extra_weights: Mapping[_Nth, int]) -> dict[int, int]:
    """Place of each word -> how telling it is."""
    in_name, weights = True, {}
    for index, (token, before) in enumerate(_number_occurrences(tokens)):
        in_name = in_name and token not in _OPENS
        if not _is_word(token):
            continue
        weight = 8 if in_name and index < 12 else 2
        if _TILE.search(token):
            weight = 10
        elif _TYPE.match(token):
            weight = 7
        elif _FUNCTOR.search(token):
            weight = 9
        weights[index] = (1 if before else weight) + extra_weights.get((token, before), 0)
    return weights


def _is_word(token: str) -> bool:
    return token[0].isalnum() or len(token) > 1


def _join_selected_tokens(tokens: Sequence[str], selected: set[int]) -> str:
    """The kept tokens, with a gap where others are left out."""
    places = sorted(selected)
    parts = ["".join(tokens[: places[0]])] if not any(map(_is_word, tokens[: places[0]])) else [GAP]
    for before, index in zip([None, *places], places, strict=False):
        if before is not None:
            between = tokens[before + 1 : index]
            text = "".join(between)
            parts.append(
                text if not any(map(_is_word, between)) else "<" + GAP if text[:1] == "<" else GAP
            )
        parts.append(tokens[index])
    tail = tokens[places[-1] + 1 :]
    parts.append("".join(tail) if not any(map(_is_word, tail)) else GAP)
    return "".join(parts)
