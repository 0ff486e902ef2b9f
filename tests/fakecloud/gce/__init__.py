"""A fake Google Compute Engine: ``python3 tests/fakecloud gce``; see its README.md.

pure, under any clock   errors, catalog, schema (and fields.txt), filters, settings, instances,
                        operations, placement, cloud, lives, specs, launching, tokens, oauth, lists,
                        api, faults, metadata, admin
of this host            keys (needs the package cryptography), machines, service, cli
"""
