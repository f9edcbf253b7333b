package vmprobe

import (
	"encoding/base64"
	"net/url"
)

func basic(u *url.Userinfo) string {
	password, _ := u.Password() // "" is none
	return base64.StdEncoding.EncodeToString([]byte(u.Username() + ":" + password))
}
