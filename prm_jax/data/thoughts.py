"""Marks of the thoughts that reasoning models write before their answer."""

import re

# DeepSeek-R1, Qwen, SmolLM3 and most others; Seed-OSS; Magistral; Sky-T1; Kimi.
THOUGHT = r"(?:seed:)?(?:think|thinking|thought)"
THOUGHT_START = re.compile(rf"<{THOUGHT}>|\[THINK\]|<\|begin_of_thought\|>|◁think▷")
THOUGHT_END = re.compile(rf"</{THOUGHT}>|\[/THINK\]|<\|end_of_thought\|>|◁/think▷")
