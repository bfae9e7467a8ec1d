"""Texts of all kinds and lengths, the same in every run: what people write, and what nobody should."""

from __future__ import annotations

from random import Random

# a literal list of so many words would be a page
WORDS = (  # noqa: SIM905
    "the a of river bank money password reset store open train water old new blue cat dog sat on mat when how what is "
    "are was not good bad egg boil time price rate loan garden summer winter music film book page light dark city"
).split()
LETTERS = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "äöüßéèêñçøåÄÖÜÉÑİıŐ",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя", "αβγδεζηθικλμνξοπρστυφχψωΑΒΓΔ", "漢字日本語中文東京大学水火木金土",
    "ひらがなカタカナ", "한국어서울부산", "अआइईउऊकखगघचछजझ", "ابتثجحخدذرزسشصضطظعغ", "אבגדהוזחטיכלמנסעפצקרשת",
    "กขฃคฅฆงจฉชซ",
)  # fmt: skip
PICTURES = "😀🎉👍🏽👩‍👩‍👧🇩🇪❤️🔥🤖"
ODD = (
    "", " ", "\n", "\t \r\n", ".", "...", "?!", "[CLS]", "[SEP] [MASK]", "[PAD][PAD]", "[UNK]", "a" * 150, "x" * 3000,
    "e\u0301e\u0301", "\u200b\u200d", "\ufeffbom", "soft\u00adhyphen", "\u202eright to left", "A\x00B", "\x07",
    "http://example.org/a?b=c&d=%20#e", "name@example.org", "3.14159", "-1e-12", "2024-02-29T23:59:59Z", "$1,000.00",
    "if x == 1:\n    return {'a': [1, 2]}", "<p>html &amp; more</p>", "SHOUTING TEXT", "MiXeD cAsE", "¿Qué? ¡Sí!",
    "naïve café résumé", "ﬁ ligature", "①②③", "½ ¾", "\U0001d56c\U0001d593 old hand", "Ω≈ç√∫µ≤≥÷", PICTURES,
)  # fmt: skip


def many_texts(count: int, seed: int = 0) -> list[str]:
    """`count` texts: odd ones first, then words, letters of many scripts and pictures, up to 5,000 words long."""
    random = Random(seed)
    texts = [*ODD, " ".join(random.choices(WORDS, k=5000)), " ".join(random.choices(WORDS, k=600)), "漢" * 700]
    while len(texts) < count:
        kind = random.random()
        if kind < 0.7:
            length = 1 + int(random.paretovariate(1.1)) if random.random() < 0.5 else random.randint(1, 40)
            texts.append(" ".join(random.choices(WORDS, k=min(length, 400))).capitalize() + random.choice(".?!,"))
        elif kind < 0.9:
            letters = random.choice(LETTERS)
            words = ["".join(random.choices(letters, k=random.randint(1, 9))) for _ in range(random.randint(1, 20))]
            texts.append(" ".join(words))
        else:
            signs = "".join(random.choices(PICTURES, k=random.randint(1, 8)))
            texts.append(f"{random.choice(WORDS)} {signs} {random.choice(WORDS)}")
    return texts[:count]
