#include "autoscaler/ec2/aws_query.h"

#include "autoscaler/cloud_text.h"

namespace troupe::ec2 {

HttpRequest SignedPost(const std::string& url, const std::string& service,
                       const std::string& region, const AwsCredentials& credentials,
                       const AwsParameters& parameters) {
  HttpRequest request;
  request.method = "POST";
  request.url = url;
  request.headers = {{"Content-Type", "application/x-www-form-urlencoded; charset=utf-8"}};
  if (!credentials.token.empty())
    request.headers.emplace_back("X-Amz-Security-Token", credentials.token);
  request.body = FormBody(parameters);
  request.aws = AwsSigning{region, service, credentials.key_id, credentials.secret};
  return request;
}

}  // namespace troupe::ec2
