"""What the schema's patterns ask for, in words: a JSON schema has no place for a message beside a pattern."""

_IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"
_DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"

#: Of every pattern below ``spec``, which a test holds.
WORDS = {
    rf"^{_IDENTIFIER}(\.{_IDENTIFIER})*:{_IDENTIFIER}$": "package.module:function",
    r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!%-~]*)?$": (
        "http://HOST[:PORT][/PATH] or https://…, without user, password or spaces"
    ),
    r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$": "a quantity as Kubernetes writes it: 2, 500m, 16Gi",
    rf"^{_DNS_LABEL}(\.{_DNS_LABEL})*$": "a name of lower-case letters, digits, - and .",
    r"^[-._a-zA-Z][-._a-zA-Z0-9]*$": "the name of an environment variable",
    r"^[-._a-zA-Z0-9]+$": "a key of letters, digits, -, _ and .",
    r"^[A-Za-z0-9][A-Za-z0-9_-]*$": "a name of letters, digits, _ and -, a letter or digit first",
    r"^(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+/?$": "an absolute path of letters, digits, _, . and -",
    r"^/[^:\x00-\x1f]+$": "an absolute path without a colon",
    r"^[0-9]+\.[0-9]+\.[0-9]+$": "a version of three numbers: 2.60.0",
}


def in_words(pattern: str) -> str:
    return WORDS.get(pattern, f"text that matches {pattern}")
