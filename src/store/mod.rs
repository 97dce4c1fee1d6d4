//! What lies in etcd: keys, objects, transactions, caches.
