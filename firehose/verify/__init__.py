"""The judge of the firehose, by phases: form, blocks, signature, tree, chain.

`verifier` puts them in order; `proof` is what one event must prove by itself, `inversion` that its ops are
all that changed, `key_book` whose signature counts, `chain` whether it follows from what was known before,
and `accounts` what is known of each account. Nothing in here does I/O.
"""

from firehose.verify.accounts import AccountState, AccountStore, RepoState
from firehose.verify.key_book import ResolveDid
from firehose.verify.proof import VerifiedRecord
from firehose.verify.verdict import FirstSight, Judgement, Policy, Verdict
from firehose.verify.verifier import Verifier

__all__ = [
    "AccountState",
    "AccountStore",
    "FirstSight",
    "Judgement",
    "Policy",
    "RepoState",
    "ResolveDid",
    "Verdict",
    "VerifiedRecord",
    "Verifier",
]
