"""A fake EC2: the Query API on a market that replays traces, with processes for instances.

======================  =========================================================================
pure, under any clock   forms, markup, sigv4, catalog, traces, settings, market, ledger, guards,
                        instances, cloud, allocation, call and the actions, dispatch, admin
with files and sockets  machines, metadata, service, cli; shared: warden (processes), web (HTTP)
======================  =========================================================================
"""
