"""Decisions with guarantees: rules made from predictions of rows that chose nothing else.

A rule is a small frozen value. It says what it promises (`print(rule)`), decides on new
predictions (`rule.apply(predictive)`) and is stored with its posterior (`Rules.save`). The
promises hold for new rows that are *exchangeable* with those that made the rule: as if both
had been drawn from one pot (docs/decisions.md).
"""

from smidgen.decide.abstain import AbstainRule, abstain
from smidgen.decide.acquire import acquire
from smidgen.decide.feature_distance import FeatureDistance
from smidgen.decide.intervals import IntervalRule, QuantileRule, intervals, quantiles
from smidgen.decide.rules import Rules
from smidgen.decide.sets import SetRule, sets
from smidgen.decide.strange import StrangeRule, strange
from smidgen.decide.uncertainty import UNCERTAINTY_SCORES, uncertainty

__all__ = [
    "UNCERTAINTY_SCORES",
    "AbstainRule",
    "FeatureDistance",
    "IntervalRule",
    "QuantileRule",
    "Rules",
    "SetRule",
    "StrangeRule",
    "abstain",
    "acquire",
    "intervals",
    "quantiles",
    "sets",
    "strange",
    "uncertainty",
]
