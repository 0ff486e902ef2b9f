"""The cluster's own certificate authority, and what it signs. Nothing of it is kept."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 2
HOSTS = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def _name(common: str, groups: tuple[str, ...] = ()) -> x509.Name:
    return x509.Name([*(x509.NameAttribute(NameOID.ORGANIZATION_NAME, one) for one in groups),
                      x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                             serialization.NoEncryption())


class Authority:
    def __init__(self, common: str = "kubernetes") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(common)
        usage = x509.KeyUsage(digital_signature=True, key_encipherment=False, key_cert_sign=True,
                              crl_sign=True, content_commitment=False, data_encipherment=False,
                              key_agreement=False, encipher_only=False, decipher_only=False)
        identity = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self.certificate = self._builder(self._subject, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True).add_extension(
            usage, critical=True).add_extension(identity, critical=False).sign(
            self._key, hashes.SHA256())
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM)

    def _builder(self, subject: x509.Name,
                 key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.timezone.utc)
        return x509.CertificateBuilder(
            self._subject, subject, key.public_key(), x509.random_serial_number(),
            now - datetime.timedelta(hours=1), now + datetime.timedelta(days=DAYS))

    def _sign(self, subject: x509.Name, usage: x509.ObjectIdentifier,
              names: list[x509.GeneralName]) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(subject, key).add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
            critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM), _pem(key)

    def server(self, addresses: list[str]) -> tuple[bytes, bytes]:
        """Certificate and key."""
        names: list[x509.GeneralName] = [x509.DNSName(one) for one in HOSTS]
        names += [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
        return self._sign(_name("kube-apiserver"), ExtendedKeyUsageOID.SERVER_AUTH, names)

    def client(self, user: str, groups: tuple[str, ...] = ()) -> tuple[bytes, bytes]:
        """Certificate and key of a user, whose groups are its organizations."""
        return self._sign(_name(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH, [])


def server_context(authority: Authority, addresses: list[str], folder: Path) -> ssl.SSLContext:
    """``folder``: for files that are removed at once, since OpenSSL reads files only."""
    certificate, key = authority.server(addresses)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=authority.pem.decode())
    path = folder / "serving.pem"
    path.touch(0o600)
    try:
        path.write_bytes(certificate + key)
        context.load_cert_chain(path)
    finally:
        path.unlink()
    return context
