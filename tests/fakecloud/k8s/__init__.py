"""A fake Kubernetes: the API over HTTPS, nodes, a scheduler, and processes for containers.

======================  =========================================================================
pure, under any clock   errors, catalog, schema (and fields.txt), quantities, selectors, store,
                        lists, watches, patches, validation, defaults, admission, access, registry,
                        scheduler, launch, lives, kubelet, nodes, controllers, ledger, faults,
                        cluster, tables, openapi, api, admin, settings
with files and sockets  containers (processes), logs, pki, kubeconfig, service, cli; shared with
                        the other clouds: warden, grafts (mounts), web (HTTP)
======================  =========================================================================

``README.md`` tells how to start it, its settings and orders, and what it leaves out.
"""
