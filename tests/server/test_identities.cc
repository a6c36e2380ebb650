#include "tests/server/test_identities.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>

namespace outrider {

TestIdentity TestIdentities::Make(const std::string& name,
                                  const std::string& alternative_names) const {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> cert(X509_new(), X509_free);
  X509_set_version(cert.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(cert.get()), 3600);
  X509_set_pubkey(cert.get(), key.get());
  X509_NAME* subject = X509_get_subject_name(cert.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(cert.get(), subject);
  const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> names(
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, alternative_names.c_str()),
      X509_EXTENSION_free);
  X509_add_ext(cert.get(), names.get(), -1);
  X509_sign(cert.get(), key.get(), EVP_sha256());
  TestIdentity identity = {Path(name + ".pem"), Path(name + ".key")};
  const std::unique_ptr<FILE, decltype(&fclose)> cert_file(fopen(identity.cert.c_str(), "w"),
                                                           fclose);
  PEM_write_X509(cert_file.get(), cert.get());
  const std::unique_ptr<FILE, decltype(&fclose)> key_file(fopen(identity.key.c_str(), "w"), fclose);
  PEM_write_PrivateKey(key_file.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return identity;
}

}  // namespace outrider
