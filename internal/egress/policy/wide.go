package policy

import (
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// Wide reports whether r opens hosts of people who have nothing to do with
// each other: a wildcard over a public suffix or a shared host, or a very
// short CIDR. It warns; it never decides.
func (r Rule) Wide() bool {
	if r.prefix.IsValid() {
		return r.prefix.Addr().Is4() && r.prefix.Bits() < 8 || r.prefix.Addr().Is6() && r.prefix.Bits() < 32
	}
	if r.suffix == "" {
		return false
	}
	ps, icann := publicsuffix.PublicSuffix(r.suffix)
	if ps == r.suffix && (icann || strings.Contains(ps, ".")) {
		return true
	}
	return slices.Contains(sharedHosts(), r.suffix)
}

// sharedHosts are domains under which anybody can rent a name and that the
// public suffix list does not hold as such, mostly because it lists what lies
// below them.
func sharedHosts() []string {
	return []string{
		"akamaihd.net", "akamaized.net", "aliyuncs.com", "amazonaws.com", "amazonaws.com.cn", "aws",
		"awsapprunner.com", "azure.com", "azure.net", "azure-api.net", "azureedge.net", "azurefd.net", "azurewebsites.net",
		"backblazeb2.com", "b-cdn.net", "bcebos.com", "cdn.cloudflare.net", "cloudapp.azure.com", "cloudflarestorage.com",
		"cloudfront.net", "cloudfunctions.net", "core.windows.net", "digitaloceanspaces.com", "edgekey.net", "edgesuite.net",
		"fastly.net", "fastlylb.net", "googleapis.com", "googleusercontent.com", "herokuapp.com", "linodeobjects.com",
		"myqcloud.com", "myshopify.com", "ngrok.io", "on.aws", "oraclecloud.com", "r2.cloudflarestorage.com", "r2.dev",
		"run.app", "sharepoint.com", "storage.googleapis.com", "supabase.co", "trafficmanager.net", "trycloudflare.com", "vultrobjects.com",
		"wasabisys.com", "webhook.site", "windows.net", "workers.dev", "zendesk.com",
	}
}
