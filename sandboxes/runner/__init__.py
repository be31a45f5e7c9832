"""The runner: the one process that skylease starts inside a sandbox.

This package imports nothing but the standard library and runs on Python 3.9 and later:
`sandboxes.tiers.archive` packs it into a single file (`runner.pyz`) that any interpreter can execute. Start
reading at `serve.py`.
"""
