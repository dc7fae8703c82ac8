"""Writes tokenizer_fixture.json beside itself: texts with llama.cpp's token ids, and its likelihood of one text.

    python make_tokenizer_fixture.py SmolLM2-135M-Instruct.Q4_1.gguf

needs llama-cpp-python (0.3.36 made the file), which compiles for some minutes: give it an environment of its own.
The texts are the project's own, but for lines of Shakespeare (public domain).
"""

# ruff: noqa: E501
import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

LINES = {
    "prose": """
Hello, world!
The quick brown fox jumps over the lazy dog.
It wasn't what she'd expected; they'll say I'm wrong, you've heard it, we're late, he'd know.
IT WASN'T WHAT SHE'D EXPECTED, AND THEY'LL SAY SO.
A cache keeps what would otherwise be computed again.
Why does the second token come faster than the first?
"Quoted," she said -- 'twice', and (in brackets) once more...
The model reads its weights once for every token; memory sets the pace.
e.g. this, i.e. that, etc.; Dr. Miller vs. Mrs. O'Neill-Smith, Ph.D.
First Citizen: Before we proceed any further, hear me speak.
To be, or not to be: that is the question: Whether 'tis nobler in the mind to suffer
Now is the winter of our discontent Made glorious summer by this sun of York;
O Romeo, Romeo! wherefore art thou Romeo? Deny thy father and refuse thy name;
Shall I compare thee to a summer's day? Thou art more lovely and more temperate:
We are accounted poor citizens, the patricians good. What authority surfeits on would relieve us:
Supercalifragilisticexpialidocious antidisestablishmentarianism pneumonoultramicroscopic
well-known state-of-the-art re-enter co-operate x-axis T-shirt
and/or yes/no he/she 24/7 w/o
Mixed CASE WoRdS and camelCaseWords and snake_case_words and kebab-case-words
a b c d e f g h i j k l m n o p
Buffalo buffalo Buffalo buffalo buffalo buffalo Buffalo buffalo.
Is this a question?! Yes!!! No??? Maybe...
The 1st, 2nd, 3rd, 4th and 21st of May.
Visit www.example.org or write to someone@example.org, please.
https://example.org/path/to/page?query=1&other=two#part-3
He paid $5.99 (about 10% off) & left #1 @ noon ~ roughly * starred ^ raised
x
.
'
""",
    "numbers": """
0
7
42
123
1234
12345
1234567890
3.14159265358979
-273.15
1,000,000
1.000.000,50
6.02214076e23
2024-02-29T23:59:59Z
12:34:56.789
+49 (0)30 901820
192.168.0.1
0x1F4B 0b1011 0o755 0xDEADBEEF
1+1=2, 2*3=6, 10/4=2.5, 2**10=1024
In 1984 there were 365 days, in 2024 366.
Route66 and B2B, MP3, H2O, C3PO, 4x4, 3D, 5G, v1.2.3-rc4
abc123def456 123abc 1a2b3c
90% of 50 is 45; 1/3 is 0.333...
$1,234.56 £99 €12,50 ¥1000
№ 5, § 12, 20°C, 5′10″
IV VII XII MCMXCIV
1000000000000000000000000000000
00000 000 0 00
page 17 of 170, lines 3-8
7 7 77 777 7777
8x speed-up at batch 16: 1.9 ms -> 0.24 ms
""",
    "unicode": """
Zoë, naïve café, façade, Ångström, jalapeño
Größe, Straße, Übermut, ÄÖÜäöüß
Đây là một câu tiếng Việt có dấu.
Żółć gęślą jaźń
Привет, мир! Как дела?
Γειά σου Κόσμε
שלום עולם
مرحبا بالعالم
नमस्ते दुनिया
สวัสดีชาวโลก
你好，世界。今天天气很好。
こんにちは世界、カタカナとひらがな
안녕하세요 세계
😀 😃 👍🏽 👩‍👩‍👧‍👦 🇫🇷 🏳️‍🌈
∑ᵢ xᵢ² ≤ ∞, ∀ε>0 ∃δ: |x−a|<δ ⇒ |f(x)−L|<ε
α β γ δ τ = 1/(1−α)
“curly” ‘quotes’ – en — em … ellipsis
½ ¼ ¾ ² ³ ① ② Ⅳ
٠١٢٣ ०१२३ ０１２３
e\u0301 versus \u00e9; A\u030a versus \u00c5
zero\u200bwidth, soft\u00adhyphen, no\u00a0break, \ufeffbom
𝕳𝖊𝖑𝖑𝖔 𝒲𝑜𝓇𝓁𝒹 𐍈 𓀀
→ ← ↑ ↓ ⇒ ⇔ █ ▓ ░ ┌─┐ │ └─┘
ﬁ ﬂ ﬀ ligatures, ǅ ß ẞ ı İ
한글ABC漢字123ひらがなxyz
""",
    "code": """
import torch.nn.functional as F
x = torch.zeros(2, 3, dtype=torch.float32)
def f(a, b=1, *args, **kwargs): return a + b
for i in range(10): print(i, end="")
if (a != b && c >= d || !e) { return x->y[0]; }
int main(void) { printf("%d\\\\n", 42); return 0; }
const sum = (xs) => xs.reduce((a, b) => a + b, 0);
let s: Vec<String> = vec!["a".to_string(); 3];
SELECT name, COUNT(*) FROM users WHERE age >= 18 GROUP BY name HAVING COUNT(*) > 1;
#include <vector>
std::unordered_map<std::string, std::vector<int>> m;
<div class="row" id='x1'><a href="#top">Top</a></div>
{"key": [1, 2.5, null, true], "nested": {"a": "b"}}
$ grep -rn "TODO" --include='*.py' . | sort -u > out.txt 2>&1
@dataclass(frozen=True)
x[1:-1, ::2] @ y.T ** 2 // 3 % 4 << 1 >> 2 & 3 | 4 ^ 5 ~6
lambda x: (yield x)
__init__ __name__ == "__main__" _private CONSTANT_NAME
f"{value:>10.3f} {name!r} {{literal}}"
r"\\d+\\.\\d*(?:[eE][+-]?\\d+)?$"
\\frac{1}{\\sqrt{2\\pi}} e^{-x^2/2}
| a | b |
- [x] done - [ ] open
**bold** _italic_ `code` ~~gone~~ [link](http://example.org)
git commit -m "fix: off-by-one (#123)"
i++; --j; k += 1; l <<= 2; m ??= n; o?.p
fn main() -> Result<(), Box<dyn Error>> { Ok(()) }
0.1 + 0.2 != 0.3  # True
""",
    "chat": """
<|im_start|>user
<|im_end|>
<|endoftext|>
<|im_start|>user Hi<|im_end|>
a<|im_end|>b<|im_start|>c<|endoftext|>d
 <|im_start|> spaced <|im_end|>
<|im_start|><|im_start|><|im_end|>
<|im_start <|im_end|> im_start|> <| |> <||>
<repo_name>lessons<file_sep>main.py
<|im_start|>12<|im_end|>34
< |im_start|>
""",
}
BLOCKS = {
    "code": [
        'def fib(n: int) -> int:\n    """Fibonacci."""\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)\n',
        "class Cache:\n\tdef __init__(self):\n\t\tself.keys = []\n\n\tdef append(self, k):\n\t\tself.keys.append(k)\n",
        "for (int i = 0; i < 100; ++i) {\n    a[i] = b[i] * 2;  // twice\n}\n",
        "import os\nimport sys\n\n\ndef main():\n    print(sys.argv[1:])\n\n\nif __name__ == '__main__':\n    main()\n",
        "| layers | 30 |\n|---|---|\n| width | 576 |\n| heads | 9 |\n",
        "all: test\n\ntest:\n\tpytest -q tests\n\n.PHONY: all test\n",
        "name: run\non: [push]\njobs:\n  test:\n    steps:\n      - run: make test\n",
        "x = 1\r\ny = 22\r\nif x:\r\n    z = 333\r\n",
    ],
    "numbers": [
        "Steps:\n\n1. Read\n\n2. Write\n\n10. Rest\n",
        "Notes\n\n\n3 apples\n\n\n\n12 pears\n",
        "matrix = [\n    1,  20, 300,\n    4,  50, 600,\n]\n",
        "name      size   time\nalpha       12    3.5\nbeta      1024   17.25\n",
        "  1 | def f():\n  2 |     return 0\n 10 | f()\n",
        "LIMIT  = 100\nstep   =   5\n",
        "0  1  1  2  3  5  8  13  21\n",
        "\t1\t2\n\t\t3\r\n\r\n4\n",
        "ACT 1\n\nSCENE 2   1599\n\n\n7\n",
        "x²  + y³   = z½ , a₁ ₂  ₃",
        "- 1\n  - 2\n    - 3\n      4\n",
        "Q:  6 x 7?\nA:  42\n\n100%  200%",
    ],
    "white space": [
        " ", "  ", "   ", "    ", "        ", "\n", "\n\n", "\n\n\n", "\t", "\t\t", "\r\n", " \n", "\n ", " \n \n ",
        "a  b   c    d", "  leading", "trailing  ", "   both   ", "a\n\n\nb", "a \n b", "tab\tseparated\tvalues",
        "\t mixed \t tabs \n\t and lines", "wide" + " " * 40 + "gap", "\n" * 12 + "end", "1  2   3", " 1", "  12", "1 \n2",
        "\u00a0\u00a0nbsp", "\u3000ideographic\u3000space", "x\u2003y\u2009z", "line\u2028separator", "\x0b\x0c",
    ],
    "chat": [
        "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nCount to 20.<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\n\n  Hi  \n\n<|im_end|>\n\n<|endoftext|>\n",
    ],
    "prose": [
        "First Citizen:\nYou are all resolved rather to die than to famish?\n\nAll:\nResolved. resolved.\n\n"
        "First Citizen:\nFirst, you know Caius Marcius is chief enemy to the people.\n",
        "KING RICHARD III:\nA horse! a horse! my kingdom for a horse!\n\nCATESBY:\nWithdraw, my lord; I'll help you to a horse.\n",
    ],
    "odd": ["", "\x00", "\x01\x02\x7f", "a" * 200, "ab" * 60, "!" * 50, "=" * 80 + "\n", "-" * 33, "\ufffd", "'s 't 're 've 'm 'll 'd 'S 'T"],
}  # fmt: skip
SCORED = (
    "The first token of an answer takes longest, because the whole prompt has to be read before it. Every later "
    "token needs only one more pass through the network, and that pass spends its time fetching weights from "
    "memory rather than multiplying them. In 2024 a laptop moved about 30 GB in a second; a model of 135 million "
    "parameters in two bytes each therefore writes at most 111 tokens a second, however fast its processor is.\n"
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n"
)


def texts() -> list[tuple[str, str]]:
    lines = [(kind, line) for kind, block in LINES.items() for line in block.strip("\n").split("\n")]
    return lines + [(kind, text) for kind, blocks in BLOCKS.items() for text in blocks]


def tokenize(llama: llama_cpp.Llama, text: str) -> list[int]:
    return llama.tokenize(text.encode(), add_bos=False, special=True)


def mean_nll(llama: llama_cpp.Llama, ids: list[int]) -> float:
    """Mean negative log-likelihood of ids[1:] in nats."""
    llama.eval(ids)
    logits = np.array(llama.scores[: len(ids) - 1], dtype=np.float64)
    logits -= logits.max(-1, keepdims=True)
    chosen = logits[np.arange(len(ids) - 1), ids[1:]]
    return float((np.log(np.exp(logits).sum(-1)) - chosen).mean())


def main(gguf: str) -> None:
    llama = llama_cpp.Llama(gguf, logits_all=True, n_ctx=512, verbose=False)
    rows = [{"kind": kind, "text": text, "ids": tokenize(llama, text)} for kind, text in texts()]
    scored = tokenize(llama, SCORED)
    made = {
        "made by": f"llama-cpp-python {llama_cpp.__version__} from {Path(gguf).name}",
        "scored": {"text": SCORED, "ids": scored, "mean_nll": round(mean_nll(llama, scored), 4)},
        "rows": rows,
    }
    target = Path(__file__).with_name("tokenizer_fixture.json")
    body = ",\n".join(json.dumps(row) for row in rows)
    head = json.dumps(made | {"rows": []}, indent=1)
    target.write_text(head.replace('"rows": []', f'"rows": [\n{body}\n]') + "\n")
    print(f"{len(rows)} texts, mean NLL {made['scored']['mean_nll']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
