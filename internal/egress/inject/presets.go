package inject

// Preset is what is known of a service. Registries have no hosts here: they
// live where the operator's own clients are configured to look.
type Preset struct {
	Name   string
	Hosts  []string
	Header string
	Prefix string
	User   string   // of user:password, where the secret is a password alone
	Family []string // further fields that carry the same credential
}

// Presets returns every preset.
func Presets() []Preset {
	return []Preset{
		{Name: "anthropic", Hosts: []string{"api.anthropic.com"}, Header: "X-Api-Key", Family: []string{"Authorization"}},
		{Name: "openai", Hosts: []string{"api.openai.com"}, Header: "Authorization", Prefix: "Bearer ", Family: []string{"Api-Key"}},
		{Name: "npm", Header: "Authorization", Prefix: "Bearer "},
		{Name: "pypi", Header: "Authorization", Prefix: "Basic ", User: "__token__"},
		{Name: "docker-registry", Header: "Authorization", Prefix: "Bearer ", Family: []string{"X-Registry-Auth"}},
		{Name: "git-https", Header: "Authorization", Prefix: "Basic ", User: "x-access-token"},
	}
}

// PresetNamed returns a preset; ok is false if there is none of that name.
func PresetNamed(name string) (p Preset, ok bool) {
	for _, p := range Presets() {
		if p.Name == name {
			return p, true
		}
	}
	return Preset{}, false
}
