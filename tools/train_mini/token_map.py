"""Engram's compressed token ids: tokens that read the same after normalisation (case, accents, blanks) share one id."""

from tokenizers import Regex, normalizers as n

NORMALISER = n.Sequence(
    [
        n.NFKC(),
        n.NFD(),
        n.StripAccents(),
        n.Lowercase(),
        n.Replace(Regex(r"[ \t\r\n]+"), " "),
        n.Replace(Regex(r"^ $"), "\ue000"),
        n.Strip(),
        n.Replace("\ue000", " "),
    ]
)


def token_map(tok):
    """[compressed id of token 0, 1, ...]; ids are given in the order of first appearance."""
    seen, out = {}, []
    for i in range(tok.get_vocab_size()):
        text = tok.decode([i], skip_special_tokens=False)
        key = tok.id_to_token(i) if "\ufffd" in text else (NORMALISER.normalize_str(text) or text)
        out.append(seen.setdefault(key, len(seen)))
    return out
