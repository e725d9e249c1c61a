"""A real one-node Kubernetes on a Linux machine without docker, and the tests that need a Kubernetes.

`python -m integration.cluster up` starts etcd, API server, controller manager, scheduler, kubelet,
kube-proxy, kube-router (which enforces NetworkPolicies), containerd and CoreDNS, all inside one private
network namespace: only 127.0.0.1 of the machine sees it, through a forwarder to the API server. The programs
are built once from their Go modules. The tests beside it take any cluster: KUBECONFIG says which.
"""
