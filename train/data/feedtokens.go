package data

func (s *Source) feedTokens(t *target) (*Data, error) { return nil, errNoInput }
