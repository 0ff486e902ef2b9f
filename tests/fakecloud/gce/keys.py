"""A fresh key of the service account, and whether it has signed something."""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa


class AccountKey:
    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.pem = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption()).decode()
        self.id = hashlib.sha256(self.pem.encode()).hexdigest()[:40]

    def has_signed(self, text: bytes, signature: bytes) -> bool:
        try:
            self._key.public_key().verify(signature, text, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return False
        return True
