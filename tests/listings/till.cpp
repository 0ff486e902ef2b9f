// @listing docs/plugins.md 1
