"""Random texts of a given length in tokens, for servers whose tokenizer isn't available."""

from __future__ import annotations

import random

# Words that are one token each in the vocabularies of current models, with or without a space
# before them. The servers' `usage` has the real numbers.
_COMMON = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program work number night point home
water room mother area money story fact month lot right study book eye job word issue side kind
head house service friend father power hour game line end member law car city name team minute
idea kid body back parent face others level office door health person art history party result
change reason girl moment air teacher force foot boy age policy music market nation plan college
effect use class control field role rate heart show leader light voice wife mind price report
son view town road arm value action season tax player record paper space ground form event
matter center site project star table need court oil cost figure street image phone data picture
piece land product doctor wall patient worker news test movie north love support step baby type
film tree source hair window culture brother energy period course summer plant term letter
choice rule south floor call church risk fire future bank west board subject rest fight top goal
second bed order author blood agency nature color store sound page race series animal factor
article east artist scene stock size fund media sign thought list quality answer disease success
cup amount ability staff growth loss degree region box trade deal bill message benefit section
glass skill stage design sort station truth song example leg dark wind sea ice snow sun moon
river bridge train ship horse bird fish dog cat
"""
WORDS = tuple(_COMMON.split())


def random_text(tokens: int, draws: random.Random) -> str:
    """A text of `tokens` words, which are about as many tokens."""
    return " ".join(draws.choices(WORDS, k=tokens))
